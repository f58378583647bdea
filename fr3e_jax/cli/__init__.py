"""The command line: from arguments to an exit code.

``fr3e VERB ...`` loads the verb's module, `verbs/VERB.py`.
Here are parsing, errors, and the arguments that verbs share. Nothing here loads jax.
"""

from fr3e_jax.cli.entry import main

__all__ = ["main"]
