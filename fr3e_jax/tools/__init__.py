"""What answers a policy within a response: tools that it calls, and environments in which it acts.

Decoding with calls and turns does not belong here (`rollouts/tool_calls.py`, `rollouts/episodes.py`), and neither
does jax. Open `tool.py` or `environment.py` first.
"""
