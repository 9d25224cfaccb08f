"""Sends commands to the engine, on behalf of every endpoint by which it is steered."""

from __future__ import annotations

from engine.contracts.control import AnyCommand, ControlReply
from engine.errors import ControlError
from engine.submission import EngineDeadError
from server.context import Context
from server.errors import ApiError
from server.http.failures import lost_engine

CONFLICTS = frozenset(
    {"asleep", "busy", "no_update", "not_paused", "resumed", "update_in_progress"}
)
"""Codes of commands that may be followed in another state of the engine: they are a 409."""


async def steer(command: AnyCommand, context: Context) -> ControlReply:
    """Let the engine follow a command; raises `ApiError` where it does not."""
    try:
        return await context.engine.control(command)
    except ControlError as error:
        status = 409 if error.code in CONFLICTS else 404 if error.code == "no_adapter" else 400
        raise ApiError(status, str(error), code=error.code) from None
    except EngineDeadError as error:
        raise lost_engine(error) from error
