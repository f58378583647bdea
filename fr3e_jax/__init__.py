"""Reinforcement learning from verifiable rewards by branching: FR3E and its relatives in JAX."""

__version__ = "0.1.0"
