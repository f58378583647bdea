"""A run on disk and on screen: its directory, checkpoints, metrics, stored rollouts, console, ledger and profile.

The method does not belong here: no module of this room imports `loop/` or `learning/`.
Open `run_directory.py` first: it names every file that a run writes.
"""
