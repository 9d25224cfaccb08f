"""Why a model cannot be served. Imports no torch, so that anyone may catch it."""

from engine.config import ConfigError


class ModelError(ConfigError):
    """A model folder that cannot be served; the message names the file, field or feature."""
