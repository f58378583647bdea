"""The command line: ``fr3e train | sft | rft | eval | sample | data | ...``. jax starts only when a verb runs."""

from fr3e_jax.cli.entry import main

__all__ = ["main"]
