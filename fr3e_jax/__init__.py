"""Reinforcement learning from verifiable rewards by branching: FR3E and its relatives in JAX."""

import os

__version__ = "0.1.0"

# Tokenizers work without PyTorch; transformers would say on every start that its models do not.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
