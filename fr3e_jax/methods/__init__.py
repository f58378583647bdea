"""The registry of methods: what each is, where it is from, which function, recipe and test belong to it."""

from fr3e_jax.methods.registry import METHODS, Method
from fr3e_jax.methods.table import list_methods, markdown_table, write_table

__all__ = ["METHODS", "Method", "list_methods", "markdown_table", "write_table"]
