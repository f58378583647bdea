"""Will a recipe fit, and how long does a step take at least: its programs, compiled for hardware that is not there.

No program runs here, and none is declared here (`programs/`). Open `plan.py` first: it makes the plan of a recipe.
"""
