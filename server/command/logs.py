"""The log lines of the server's process."""

from __future__ import annotations

import logging

from engine.logs import configure_logging
from server.command.settings import Settings


def log_level(settings: Settings) -> str:
    """The least level of our lines, as Python's logging calls it; uvicorn's "trace" is debug."""
    return settings.log_level.replace("trace", "debug")


def http_log_level(settings: Settings) -> str | None:
    """The least level of lines about connections; None where it is that of all lines."""
    level = settings.uvicorn_log_level
    return None if level is None else level.replace("trace", "debug").upper()


def configure_server_logging(settings: Settings) -> None:
    """Send the server's lines, and those of the HTTP server, to standard error in one format."""
    configure_logging(log_level(settings), settings.log_format, "tailrace")
    if (level := http_log_level(settings)) is not None:
        logging.getLogger("tailrace.http").setLevel(level)
