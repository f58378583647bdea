"""Verifiers, which give a full response a reward in [0, 1]; without jax, so that worker processes start quickly."""
