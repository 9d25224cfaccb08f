"""Checks of fields that several routes share against what this server serves."""

from __future__ import annotations

from engine.contracts.control import EngineState
from server.config import ServerConfig
from server.errors import ApiError, bad_request

TOO_LONG = "context_length_exceeded"
"""The code of the refusal of a prompt that does not fit the context."""


def check_model(name: str | None, config: ServerConfig, state: EngineState) -> str:
    """The name that the reply carries; raises a 404 unless the server answers to this one."""
    if name is None:
        return config.model_names[0]
    adapters = [adapter.name for adapter in state.adapters]
    if name not in config.model_names and name not in adapters and not config.any_model_name:
        served = ", ".join([*config.model_names, *adapters])
        raise model_not_found(f"the model {name!r} does not exist; served here: {served}")
    return name


def model_not_found(message: str) -> ApiError:
    """The refusal of a name that the server does not answer to."""
    return ApiError(404, message, param="model", code="model_not_found")


def adapter_of(name: str | None, config: ServerConfig) -> str:
    """The adapter of a checked name, as the engine knows it; empty for the base.

    It may be gone when the engine hears of it, which then says so.
    """
    is_base = name is None or name in config.model_names or config.any_model_name
    return "" if is_base or name is None else name


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
