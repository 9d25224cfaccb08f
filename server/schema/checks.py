"""Checks of fields that several routes share against what this server was told to serve."""

from __future__ import annotations

from server.config import ServerConfig
from server.errors import ApiError, bad_request


def check_model(name: str | None, config: ServerConfig) -> None:
    """Raise a 404 unless the server answers to this name; no name is right too."""
    if name is not None and name not in config.model_names:
        served = ", ".join(config.model_names)
        message = f"the model {name!r} does not exist; served here: {served}"
        raise ApiError(404, message, param="model", code="model_not_found")


def check_priority(priority: int | None, config: ServerConfig) -> None:
    """Raise a 400 for a priority that the scheduling policy would ignore."""
    if priority and not config.priority_scheduling:
        raise bad_request(
            "priority",
            f"priority must be 0 without --scheduling-policy priority, got {priority}",
        )
