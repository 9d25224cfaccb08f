"""Answers a request that was made ready: at once or as a stream, whatever the shape."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from server.context import Context
from server.generation.choice import ReplyChoice
from server.generation.generation import Generation
from server.generation.prepare import PreparedRequest
from server.generation.render import Renderer
from server.generation.streaming import ChunkWriter, Recording, StreamWriter, stream_reply
from server.http.account import account_of
from server.http.disconnect import CancelOnDisconnect
from server.http.reply import json_reply

logger = logging.getLogger("tailrace")

T = TypeVar("T")


async def answer(
    prepared: PreparedRequest,
    renderer: Renderer,
    request: Request,
    context: Context,
    make_writer: Callable[[Generation], StreamWriter] | None = None,
    recording: Recording | None = None,
) -> Response:
    """Let the engine generate, and write what comes as the renderer has it.

    Args:
        make_writer: makes the writer of a stream; None for chunks in OpenAI's shape.
        recording: keeps what comes; None for nobody.
    """
    if context.config.log_requests:
        _log(prepared, context)
    generation = Generation(
        prepared,
        engine=context.engine,
        tokenizer=context.tokenizer,
        admission=context.admission,
        metrics=context.metrics,
    )
    if recording is not None:
        recording.attach(generation)
    account = account_of(request.scope)
    account.usage, account.report = generation.usage, generation.report
    account.release_body()
    if prepared.spec.form.stream:
        worker, metrics = context.worker, context.metrics
        make_writer = make_writer or partial(ChunkWriter, renderer=renderer)
        writer = make_writer(generation)
        return await stream_reply(
            generation,
            writer,
            request.receive,
            worker=worker,
            metrics=metrics,
            recording=recording,
        )
    return await _plain_reply(generation, renderer, request, context, recording)


async def _plain_reply(
    generation: Generation,
    renderer: Renderer,
    request: Request,
    context: Context,
    recording: Recording | None,
) -> Response:
    """Answer with the whole reply at once."""

    async def render(choices: list[ReplyChoice], write: Callable[..., T], *args: Any) -> T:
        if renderer.is_big(choices):
            return await context.worker.run(write, choices, *args)
        return write(choices, *args)

    with CancelOnDisconnect(request.receive):
        with generation:
            await generation.submit()
            while changed := await generation.update():
                if due := renderer.due(changed):
                    await render(due, renderer.write_ahead)
            if recording is not None:
                await render(generation.choices, renderer.write_ahead)
                await recording.settle(None)
        ends = generation.usage(), generation.draft_metrics()
        return json_reply(await render(generation.choices, renderer.reply, *ends))


def _log(prepared: PreparedRequest, context: Context) -> None:
    limit = context.config.max_log_len
    for prompt in prepared.prompts:
        shown = prompt.text if prompt.text is not None else prompt.token_ids[:limit].tolist()
        logger.info(
            "%s: prompt %r, %s", prepared.spec.reply_id, shown[:limit], prepared.spec.params
        )
