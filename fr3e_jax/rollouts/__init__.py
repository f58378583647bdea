"""The host side of the decoder: requests go in, rollouts come out.

Here are the requests, the schedule of slots and lanes, promotion to trunks, tool calls, and the names of all noise.
Rewards and learning do not belong here, and neither do compiled programs (`programs/`). Open `engine.py` first.
"""
