"""Tools that a policy calls while it answers: the marks of a call, the code that runs it, and the form of its answer.

Decoding with calls does not belong here (`rollouts/tool_calls.py`), and neither does jax. Open `tool.py` first.
"""
