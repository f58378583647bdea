"""The verbs of the command, one file each: arguments, their help, and the function, together as ``VERB``.

The module of a verb loads without jax, so that mistakes in arguments cost no time; its function imports the rest.
Open `train.py` first, then `sample.py`: it is the shortest path from settings to tokens.
"""
