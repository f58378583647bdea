"""The catalogue of methods: sources, functions, tests and recipes, read from the recipes' headers."""

from fr3e_jax.methods.recipe_headers import HeaderError, Method, read_methods
from fr3e_jax.methods.table import list_methods, markdown_table

__all__ = ["HeaderError", "Method", "list_methods", "markdown_table", "read_methods"]
