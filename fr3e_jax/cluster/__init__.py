"""Several processes in one run: how they find each other, join and leave, and prove that they decide alike.

Devices, meshes and compiled programs do not belong here (`programs/`), and neither does the method (`loop/`).
Open `processes.py` first: it holds the messages that processes exchange.
"""
