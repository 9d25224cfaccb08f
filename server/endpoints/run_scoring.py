"""Asks the engine for scores, on behalf of every endpoint that reads labels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import structs

from engine.messages.request import ScoringRequest
from engine.messages.step_output import Finish, ItemScores
from engine.submission import EngineDeadError
from server.context import Context
from server.http.failures import failed_request, lost_engine
from server.schema.model_name import adapter_of

Found = TypeVar("Found")


async def run_scoring(
    request_of: Callable[[int], ScoringRequest],
    num_prompt_tokens: int,
    context: Context,
    *,
    model: str | None,
    adapter_digest: str = "",
) -> ItemScores:
    """The engine's answer; the request ends there if nobody waits for it any more.

    Args:
        request_of: makes the engine's request of its handle.
        num_prompt_tokens: tokens that are billed.
        model: the checked name of the model or adapter that is asked.
        adapter_digest: as of `Request.adapter_digest`.

    Raises:
        ApiError: the engine failed, or is gone.
    """
    metrics, began = context.metrics, time.perf_counter()
    context.admission.admit(1)
    reason = "error"
    try:
        adapter = adapter_of(model, context.config)
        scores = await _submitted(request_of, adapter, adapter_digest, context)
        if scores.finish != Finish.LENGTH:
            raise failed_request(scores.finish, scores.error)
        reason = "length"
        return scores
    except EngineDeadError as error:
        raise lost_engine(error) from error
    except asyncio.CancelledError:
        reason = "abort"
        raise
    finally:
        context.admission.release(1)
        metrics.finished[reason].inc()
        metrics.e2e.observe(time.perf_counter() - began)
        metrics.prompt_tokens.inc(num_prompt_tokens)
        metrics.prompt_lens.observe(num_prompt_tokens)


async def side_by_side(runs: Sequence[Coroutine[Any, Any, Found]]) -> list[Found]:
    """What several find that run at once; the first that fails ends the others."""
    if len(runs) == 1:
        return [await runs[0]]  # without a task of its own
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in runs]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


async def _submitted(
    request_of: Callable[[int], ScoringRequest], adapter: str, digest: str, context: Context
) -> ItemScores:
    engine = context.engine
    request = request_of(engine.new_handle())
    if adapter:
        request = structs.replace(request, adapter=adapter, adapter_digest=digest)
    submission = engine.score(request)
    context.admission.enter(submission)
    try:
        async for _ in submission:
            pass
    finally:
        context.admission.leave(submission)
        if not submission.finished:
            engine.abort(submission.handle)
    assert submission.item_scores is not None
    return submission.item_scores
