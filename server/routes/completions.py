"""`POST /v1/completions`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.completions.choice import ReplyChoice
from server.completions.generation import Generation
from server.completions.prepare import Job, make_job
from server.completions.streaming import stream_reply
from server.context import Context, context_of
from server.errors import ApiError, json_response
from server.http.account import account_of
from server.http.disconnect import CancelOnDisconnect
from server.routes.plain import PlainRoute
from server.schema.completions import CompletionRequest
from server.schema.openapi import describes
from server.schema.replies import CompletionReply

router = APIRouter(tags=["generation"], route_class=PlainRoute)
logger = logging.getLogger("tailrace")

T = TypeVar("T")


@router.post("/v1/completions", **describes(CompletionRequest, CompletionReply, stream=True))
async def create_completion(request: Request) -> Response:
    """Continue one or many prompts."""
    context = context_of(request)
    wire = await context.bodies.read(request, CompletionRequest)
    job = await make_job(
        wire,
        config=context.config,
        info=context.engine.info,
        tokenizer=context.tokenizer,
        request_id=account_of(request.scope).request_id,
        drawn_seed=context.seeds.getrandbits(63) if context.seeds is not None else None,
    )
    if context.config.log_requests:
        _log(job, context)
    generation = Generation(
        job,
        engine=context.engine,
        tokenizer=context.tokenizer,
        admission=context.admission,
        metrics=context.metrics,
    )
    if job.form.stream:
        return await stream_reply(
            generation, request.receive, worker=context.worker, metrics=context.metrics
        )
    return await _plain_reply(generation, request, context)


async def _plain_reply(generation: Generation, request: Request, context: Context) -> Response:
    """The whole reply at once."""
    renderer = generation.renderer

    async def render(choices: list[ReplyChoice], write: Callable[..., T], *args: Any) -> T:
        if renderer.is_big(choices):
            return await context.worker.run(write, choices, *args)
        return write(choices, *args)

    with CancelOnDisconnect(request.receive):
        with generation:
            generation.submit()
            while changed := await generation.update():
                if due := renderer.due(changed):
                    await render(due, renderer.write_ahead)
        ends = generation.usage(), generation.metrics()
        return json_response(await render(generation.choices, renderer.reply, *ends))


def _log(job: Job, context: Context) -> None:
    limit = context.config.max_log_len
    for prompt in job.prompts:
        shown = prompt.text if prompt.text is not None else prompt.token_ids[:limit].tolist()
        logger.info("%s: prompt %r, %s", job.reply_id, shown[:limit], job.params)


@router.post("/v1/chat/completions", include_in_schema=False)
async def create_chat_completion(request: Request) -> Response:
    """Not available yet."""
    raise ApiError(404, "chat completions are not available yet; use /v1/completions")
