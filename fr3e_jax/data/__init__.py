"""Tasks, their problems and demonstrations, tokenizers, and the resumable order in which prompts are drawn.

Verifiers do not belong here (`rewards/`), and neither does jax. Open `task.py` first: it says what a task offers.
"""
