"""Lines on standard error."""

from __future__ import annotations

import logging
import logging.config

from server.command.settings import Settings


class _PathFilter(logging.Filter):
    """Keeps access lines of some paths out of the log."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        path = args[2] if isinstance(args, tuple) and len(args) > 2 else ""
        return str(path).partition("?")[0] not in self._paths


def configure_logging(settings: Settings) -> None:
    """One format for the server's own lines and the HTTP server's."""
    level = settings.uvicorn_log_level.upper().replace("TRACE", "DEBUG")
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": "%(levelname)s %(asctime)s %(name)s: %(message)s"}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "loggers": {
                "tailrace": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
                "uvicorn": {"handlers": ["stderr"], "level": level, "propagate": False},
            },
        }
    )
    # What no line shows need not be found out for each: a system call and a walk up the stack.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    hidden = settings.disable_access_log_for_endpoints
    logging.getLogger("uvicorn.access").addFilter(_PathFilter(hidden))
