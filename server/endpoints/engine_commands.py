"""Sends commands to the engine, on behalf of every endpoint by which it is steered."""

from __future__ import annotations

import contextlib
from typing import Literal

from engine.contracts.control import AnyCommand, ControlReply, Resume, RunWeights
from engine.contracts.weights import (
    AbandonUpdate,
    AnySource,
    AnyWeightCommand,
    BeginUpdate,
    FinishUpdate,
    ListWeights,
    PassTensors,
    ReceiveTensors,
    WeightList,
    WeightReply,
    WeightTarget,
)
from engine.errors import ControlError
from engine.submission import EngineDeadError
from server.context import Context
from server.errors import ApiError, held
from server.http.failures import lost_engine

CONFLICTS = frozenset(
    {"asleep", "busy", "no_update", "not_paused", "resumed", "update_in_progress"}
)
"""Codes of commands that may be followed in another state of the engine: they are a 409."""
LATER = frozenset({"no_memory"})
"""Codes of commands that may be followed once others do something: they are a 503."""


async def steer(command: AnyCommand, context: Context) -> ControlReply:
    """Let the engine follow a command; raises `ApiError` where it does not."""
    try:
        return await context.engine.control(command)
    except ControlError as error:
        if error.code in LATER:
            raise held(str(error), error.code) from None
        status = 409 if error.code in CONFLICTS else 404 if error.code == "no_adapter" else 400
        raise ApiError(status, str(error), code=error.code) from None
    except EngineDeadError as error:
        raise lost_engine(error) from error


async def end_pause(context: Context) -> Literal["resumed", "asleep", "no_weights"]:
    """End a pause; returns what holds the engine still, "resumed" where nothing does."""
    state = (await steer(Resume(), context)).state
    if state.asleep:
        return "asleep"
    return "no_weights" if state.lacks_weights else "resumed"


async def run_weights(command: AnyWeightCommand, context: Context) -> WeightReply:
    """Let the engine follow a command about weights; raises as `steer`."""
    return (await steer(RunWeights(weights=command), context)).weights


async def update_weights(
    source: AnySource,
    context: Context,
    finish: FinishUpdate,
    *,
    target: WeightTarget = "model",
    joins: bool = False,
) -> None:
    """Do all of an update; raises as `steer`, and the old weights are still there.

    Args:
        joins: where an update was begun that takes parts, be one, which is not finished here.
    """
    try:
        await run_weights(BeginUpdate(target=target), context)
    except ApiError as error:
        if not joins or error.code != "update_in_progress":
            await run_weights(PassTensors(source=source), context)
            raise
        part = ReceiveTensors(source=source, is_part=True, version=finish.version)
        await run_weights(part, context)
        return
    try:
        await run_weights(ReceiveTensors(source=source), context)
        await run_weights(finish, context)
    except BaseException:
        with contextlib.suppress(ApiError):  # an update that failed has ended by itself
            await run_weights(AbandonUpdate(), context)
        raise


async def list_weights(command: ListWeights, context: Context) -> WeightList:
    """The weights by name; raises as `steer`."""
    reply = await run_weights(command, context)
    assert isinstance(reply, WeightList)
    return reply


async def checksums(context: Context) -> dict[str, str | None]:
    """The checksum of every weight, by name; raises as `steer`."""
    found = await list_weights(ListWeights(checksums=True), context)
    return {weight.name: weight.checksum for weight in found.weights}
