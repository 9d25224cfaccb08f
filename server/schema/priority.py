"""The priority of a request, which only some scheduling policies look at."""

from __future__ import annotations

from server.config import ServerConfig
from server.errors import bad_request


def check_priority(priority: int | None, config: ServerConfig) -> None:
    """Raise a 400 for a priority that the scheduling policy would ignore."""
    if priority and not config.priority_scheduling:
        raise bad_request(
            "priority",
            f"priority must be 0 without --scheduling-policy priority, got {priority}",
        )
