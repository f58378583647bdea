"""The command line ``fr3e train | sft | rft | eval | sample | data | ...``; jax is imported only when a verb runs."""

from fr3e_jax.cli.entry import main

__all__ = ["main"]
