"""From rollouts to new weights: rows, packing, mini-batches, scoring, shaping, the update, critic and reference.

The mathematics does not belong here (`objectives/`), and neither do compiled programs (`programs/`) or files (`runs/`).
Open `update.py` first: it takes a full batch through all of these in order.
"""
