"""Tools that a policy calls within a response, and environments: tools with state, in which it acts.

Decoding with calls and turns does not belong here (`rollouts/tool_calls.py`), and neither
does jax. Open `tool.py` or `environment.py` first.
"""
