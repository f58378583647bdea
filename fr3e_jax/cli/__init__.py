"""The command line: ``fr3e train | sft | rft | eval | sample | data | ...``, from arguments to an exit code.

The work of a verb does not belong here (`loop/`, `verbs/`): jax is imported only when a verb runs.
Open `entry.py` first, then `verbs.py`, which has one function for each verb.
"""

from fr3e_jax.cli.entry import main

__all__ = ["main"]
