"""Why a configuration cannot be served. Imports nothing, so that every config may raise it."""


class ConfigError(ValueError):
    """A setting that cannot be served; the message names it, its limit and its value."""
