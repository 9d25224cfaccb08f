"""Checks of fields that several routes share against what this server serves."""

from __future__ import annotations

from server.config import ServerConfig
from server.errors import ApiError, bad_request

TOO_LONG = "context_length_exceeded"
"""The code of the refusal of a prompt that does not fit the context."""


def check_model(name: str | None, config: ServerConfig) -> str:
    """The name that the reply carries; raises a 404 unless the server answers to this one."""
    if name is None:
        return config.model_names[0]
    if name not in config.model_names and not config.any_model_name:
        served = ", ".join(config.model_names)
        message = f"the model {name!r} does not exist; served here: {served}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return name


def too_long(field: str, num_tokens: str, max_model_len: int) -> ApiError:
    """The refusal of a prompt that does not fit the context.

    Args:
        num_tokens: how many it has, or at least has, in words.
    """
    return bad_request(
        field,
        f"{field} must leave room in the context of {max_model_len} tokens (--max-model-len), "
        f"got {num_tokens} tokens",
        TOO_LONG,
    )


def check_priority(priority: int | None, config: ServerConfig) -> None:
    """Raise a 400 for a priority that the scheduling policy would ignore."""
    if priority and not config.priority_scheduling:
        raise bad_request(
            "priority",
            f"priority must be 0 without --scheduling-policy priority, got {priority}",
        )
