"""The errors of a configuration or model that cannot be served, and how errors are worded.

Imports nothing, so that every module may raise them.
"""

AS_PUBLISHED = "give a config as its authors published it"
"""What there is to do about a config.json of which no model can be made."""


class ConfigError(ValueError):
    """A setting that cannot be served; the message names it, its limit and its value."""


class ModelError(ConfigError):
    """A model folder that cannot be served; the message names the file, field or feature."""


class AdapterError(ValueError):
    """An adapter that cannot be served; the message names the file, tensor or field."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its class where it has no message.

    The next one goes with it where the first ends in a colon.
    """
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def kind_and_line(error: BaseException) -> str:
    """The class of an error and the first line of its message, for errors of unknown origin."""
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"


class ControlError(Exception):
    """A command that cannot be followed now; nothing changed.

    Args:
        message: goes to other ranks and to clients, so that what UTF-8 has no bytes for, as names
            of files may hold it, is escaped.

    Attributes:
        code: a word for programs.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())
        self.code = code
