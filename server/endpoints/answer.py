"""Answers a request that was made ready: at once or as a stream, whatever the shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from server.generation.choice import ReplyChoice
from server.generation.generation import Generation
from server.generation.render import Renderer
from server.generation.streaming import ChunkWriter, StreamWriter, stream_reply
from server.http.account import account_of
from server.http.disconnect import CancelOnDisconnect
from server.http.reply import json_reply

T = TypeVar("T")
R = TypeVar("R", bound=Renderer)


async def answer(
    generation: Generation,
    renderer: R,
    request: Request,
    make_writer: Callable[[Generation, R], StreamWriter] = ChunkWriter,
) -> Response:
    """Let the engine generate, and write what comes as the renderer has it.

    Args:
        make_writer: makes the writer of a stream.
    """
    account = account_of(request.scope)
    account.usage, account.report = generation.tally.usage, generation.tally.report
    account.release_body()
    await generation.submit()
    if generation.prepared.spec.form.stream:
        return await stream_reply(generation, make_writer(generation, renderer), request.receive)
    return await _plain_reply(generation, renderer, request)


async def _plain_reply(generation: Generation, renderer: Renderer, request: Request) -> Response:
    """Answer with the whole reply at once."""
    with CancelOnDisconnect(request.receive):
        with generation:
            await finish(generation, renderer)
        ends = generation.tally.usage(), generation.tally.draft_metrics()
        write, choices = renderer.reply, generation.choices
        return json_reply(await _render(generation, renderer, choices, write, *ends))


async def finish(generation: Generation, renderer: Renderer) -> None:
    """Let all choices end, and record it; what can be written before the whole reply is."""
    while changed := await generation.update():
        if due := renderer.due(changed):
            await _render(generation, renderer, due, renderer.write_ahead)
    if generation.recording is not None:
        await _render(generation, renderer, generation.choices, renderer.write_ahead)
        await generation.recording.settle(None)


async def _render(
    generation: Generation,
    renderer: Renderer,
    choices: list[ReplyChoice],
    write: Callable[..., T],
    *args: Any,
) -> T:
    """Write what is small on the event loop, and what is not on a thread."""
    if renderer.is_big(choices):
        return await generation.prepared.served.worker.run(write, choices, *args)
    return write(choices, *args)
