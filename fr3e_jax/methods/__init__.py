"""The catalogue of methods: sources, functions, tests and recipes, read from the recipes' headers."""

from fr3e_jax.methods.recipe_headers import HeaderError, Method, find_configs, read_methods

__all__ = ["HeaderError", "Method", "find_configs", "read_methods"]
