"""Settings of a run: typed, checked, saved. ``schema`` and ``shaping_sections`` declare all of them."""

from fr3e_jax.configuration.describe import help_text, to_yaml
from fr3e_jax.configuration.load import load_config
from fr3e_jax.configuration.provenance import collect, save_config
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import ConfigError

__all__ = ["Config", "ConfigError", "collect", "help_text", "load_config", "save_config", "to_yaml"]
