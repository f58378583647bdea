"""The method in its order: prompts, First Return, Explore, grading, evaluation, and the loop that repeats them.

Mathematics does not belong here (`objectives/`), and neither do compiled programs (`programs/`) or file formats
(`runs/`). Open `train.py` first: it calls each stage by name.
"""
