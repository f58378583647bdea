"""The command line: from arguments to an exit code.

``fr3e VERB ...`` loads the verb's module, which `verb_table.py` names: `verbs/VERB.py`, or one of the laboratory.
Here are parsing, errors, and the arguments that verbs share. Nothing here loads jax.
"""

from fr3e_jax.cli.entry import main

__all__ = ["main"]
