"""Settings of a run: typed, checked, saved.

The code that a setting changes does not belong here. Settings are read before jax starts.
Open `schema.py` first: it holds everything that a user can change.
"""

from fr3e_jax.configuration.describe import help_text, short_help, to_yaml
from fr3e_jax.configuration.load import load_config
from fr3e_jax.configuration.provenance import collect, save_config
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import ConfigError

__all__ = ["Config", "ConfigError", "collect", "help_text", "load_config", "save_config", "short_help", "to_yaml"]
