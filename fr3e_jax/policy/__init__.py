"""The network as a pure function of its weights: architecture, attention, sampling from logits, Hugging Face files.

`jax.jit` does not belong here (`programs/`), and neither do settings or the loops that decode and train.
Open `network.py` first, then `rows.py`, which shows how trunks and branches pass the network.
"""
