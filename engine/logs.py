"""Log lines, the same for the server and the engine process: one format as text, one as JSON.

What clients send may be in a line: line breaks, escapes and all else that does not print are
escaped, so that nobody can forge a line or steer a terminal.
"""

from __future__ import annotations

import logging
import logging.config
import sys
import time
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]

FIELDS = "fields"
"""Name of a record's extra attribute: a dict that the JSON format adds to the line."""

_NAMES = {"uvicorn": "http", "tailrace": "server", "py": "python"}
"""What lines call a logger's first part; all else is called as it is, without what follows."""


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 INFO engine: message`, and an error's traceback indented below."""

    def __init__(self) -> None:
        super().__init__()
        self._on_terminal = sys.stderr.isatty()

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        clear = "\r\x1b[K" if self._on_terminal else ""  # a bar may be there
        head = f"{clear}{seconds}.{int(record.msecs):03d} {record.levelname} {source(record.name)}"
        line = f"{head}: {escaped(record.getMessage())}"
        if record.exc_info:
            for below in self.formatException(record.exc_info).splitlines():
                line += f"\n    {escaped(below)}"
        return line


class JsonFormatter(logging.Formatter):
    """An object a line: `time` (UTC), `level`, `source`, `message`, `error`, and a record's own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "source": source(record.name),
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def source(logger_name: str) -> str:
    """What a line calls the part of the system it comes from: `engine`, `http`, `server`."""
    first, _, rest = logger_name.partition(".")
    if first == "tailrace" and rest:
        return rest
    return _NAMES.get(first, first)


def escaped(text: str) -> str:
    """The text with all that does not print written out, such as a line break as \\n."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def configure_logging(level: str, log_format: LogFormat, *names: str) -> None:
    """Send all lines to standard error: our own from `level` on, those of libraries if they warn.

    Args:
        names: the loggers that ours descend from in this process.
    """
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"()": formatter}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"handlers": ["stderr"], "level": "WARNING"},
            "loggers": {name: {"level": level.upper()} for name in names},
        }
    )
    # No format names threads or places in the code, and finding them costs each line a system
    # call and a walk up the stack.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.captureWarnings(True)


def adopt_library_lines() -> None:
    """Let libraries that write lines of their own, once imported, use our format."""
    for name in ("transformers", "huggingface_hub"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
