"""Responses in the background: made without their client, who reads them from the store."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import Response

from server.conversation.shaped_render import ShapedRenderer
from server.endpoints.answer import finish
from server.endpoints.responses.recording import ResponseRecording
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.shape import ResponseShape
from server.errors import ApiError, bad_request, json_response
from server.generation.generation import Generation
from server.http.lifecycle import Lifecycle

logger = logging.getLogger("tailrace")


def check_background(body: ResponsesRequest, *, is_stored: bool) -> None:
    """Raise a 400 for a response in the background that nobody could read."""
    if not body.background:
        return
    if not is_stored:
        raise bad_request("background", "background can only be used when `store` is true")
    if body.stream:
        raise bad_request("stream", "stream must be false where background is true")


async def answer_later(
    generation: Generation,
    renderer: ShapedRenderer,
    shape: ResponseShape,
    recording: ResponseRecording,
    lifecycle: Lifecycle,
) -> Response:
    """Submit a response that was noted, and answer before the engine has begun it.

    A server that is ended waits for it, as it waits for requests.
    """
    await generation.submit()
    reply = json_response(shape.queued())
    lifecycle.enter()
    recording.task = asyncio.create_task(_run(generation, renderer, recording, lifecycle))
    return reply


async def _run(
    generation: Generation,
    renderer: ShapedRenderer,
    recording: ResponseRecording,
    lifecycle: Lifecycle,
) -> None:
    try:
        with generation:
            try:
                await generation.update()  # what came is in its choices, and goes on in `finish`
                await recording.note_start()
                await finish(generation, renderer)
            except ApiError as error:
                await recording.settle(error)
            except Exception:
                logger.exception("%s broke in the background", generation.prepared.spec.reply_id)
                await recording.settle(ApiError(500, "internal error", code="internal_error"))
    finally:
        lifecycle.leave()
