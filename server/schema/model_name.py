"""The name of a model or adapter that a request gives, checked against those served."""

from __future__ import annotations

from engine.contracts.control import EngineState
from server.config import ServerConfig
from server.errors import ApiError


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


def adapter_digest(name: str | None, config: ServerConfig, state: EngineState) -> str:
    """The digest of the adapter that a checked name stands for now; empty for the base.

    Requests that have it are answered by that adapter, or not at all.
    """
    adapter = adapter_of(name, config)
    return next((each.digest for each in state.adapters if each.name == adapter), "")


def adapter_of(name: str | None, config: ServerConfig) -> str:
    """The adapter of a checked name, as the engine knows it; empty for the base.

    It may be gone when the engine hears of it, which then says so.
    """
    is_base = name is None or name in config.model_names or config.any_model_name
    return "" if is_base or name is None else name
