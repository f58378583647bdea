"""From a problem and a full response to a reward in [0, 1]; imports no jax, so that worker processes start quickly."""
