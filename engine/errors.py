"""Why a configuration or a model cannot be served. Imports nothing, so that anyone may raise it."""


class ConfigError(ValueError):
    """A setting that cannot be served; the message names it, its limit and its value."""


class ModelError(ConfigError):
    """A model folder that cannot be served; the message names the file, field or feature."""
