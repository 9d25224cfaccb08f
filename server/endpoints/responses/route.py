"""`POST /v1/responses`, and the count of its prompt's tokens."""

from __future__ import annotations

import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import Context, context_of
from server.conversation.prompt import conversation_prompt, count_tokens
from server.conversation.shaped_render import EventWriter, ShapedRenderer, frames
from server.conversation.truncation import fitting_prompt
from server.endpoints.answer import answer
from server.endpoints.plain import PlainRoute
from server.endpoints.responses.background import answer_later, check_background
from server.endpoints.responses.history import History, needed_store, read_history
from server.endpoints.responses.recording import CANCELLED_CODE, ResponseRecording
from server.endpoints.responses.reply_schema import InputTokens, ResponseReply
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.shape import ResponseShape
from server.endpoints.responses.spec import response_conversation, response_spec
from server.endpoints.responses.tools_schema import SearchTool
from server.errors import ApiError, json_response
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.http.account import account_of, reply_id
from server.schema.openapi import NAMED_EVENTS, describes

router = APIRouter(tags=["responses"], route_class=PlainRoute)


@router.post("/v1/responses", **describes(ResponsesRequest, ResponseReply, stream=NAMED_EVENTS))
async def create_response(request: Request) -> Response:
    """Reply to a conversation, as OpenAI's Responses API has it."""
    context = context_of(request)
    body, history = await _read(request, context)
    is_stored = _is_stored(body, context)
    check_background(body, is_stored=is_stored)
    conversation = response_conversation(body, history)
    if body.truncation == "auto":
        prompt = await fitting_prompt(conversation, context, body.max_output_tokens)
    else:
        prompt = await conversation_prompt(conversation, context)
    # A stored response has an id that no other request has, whatever X-Request-Id says.
    own_id = f"resp_{secrets.token_hex(16)}" if is_stored and body.request_id is None else None
    spec = await response_spec(
        body, prompt, context, own_id or reply_id("resp_", body.request_id, request.scope)
    )
    prepared = await prepare(spec, context)
    shape = ResponseShape(body, prepared, prompt.call_id_chars)
    renderer = ShapedRenderer(prepared, prompt, shape)
    generation = Generation(prepared)
    if is_stored:
        store = needed_store(context, "store")
        recording = ResponseRecording(store, shape, renderer, generation, prompt.num_chars)
        owner, in_background = account_of(request.scope).owner, bool(body.background)
        await recording.begin(owner, history, in_background=in_background)
        if in_background:
            return await answer_later(generation, renderer, shape, recording, context.lifecycle)
    try:
        return await answer(generation, renderer, request, EventWriter)
    except ApiError as error:
        if error.code != CANCELLED_CODE:
            raise
        return _cancelled(shape, error, is_stream=bool(body.stream))


def _cancelled(shape: ResponseShape, error: ApiError, *, is_stream: bool) -> Response:
    """A response that was cancelled before any of it was sent."""
    if not is_stream:
        return json_response(shape.broken(error))
    events = [*shape.begin({}), *shape.failure(error)]
    return Response(frames(events), media_type="text/event-stream")


@router.post("/v1/responses/input_tokens", **describes(ResponsesRequest, InputTokens))
async def count_input_tokens(request: Request) -> Response:
    """Count the tokens of the prompt that a response would have; nothing is generated."""
    context = context_of(request)
    body, history = await _read(request, context)
    num_tokens = await count_tokens(response_conversation(body, history), context)
    return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})


async def _read(request: Request, context: Context) -> tuple[ResponsesRequest, History]:
    """A body, and the conversation that it goes on with; raises `ApiError`."""
    body = await context.bodies.read(request, ResponsesRequest)
    account = account_of(request.scope)
    searches = [
        f"tools[{i}]" for i, tool in enumerate(body.tools or ()) if isinstance(tool, SearchTool)
    ]
    account.without_effect = [*account.without_effect, *searches]
    return body, await read_history(body, request.scope, context)


def _is_stored(body: ResponsesRequest, context: Context) -> bool:
    """Whether a response is kept: unless the request or the server says no."""
    if body.store:
        needed_store(context, "store")
    return body.store is not False and context.responses is not None
