"""`POST /invocations`, SageMaker's only route: the body's fields say which route answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.chat.route import create_chat_completion
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.completions.route import create_completion
from server.endpoints.completions.schema import CompletionRequest
from server.endpoints.embeddings.route import embeddings
from server.endpoints.embeddings.schema import EmbeddingsRequest
from server.endpoints.plain import PlainRoute
from server.endpoints.rerank.route import rerank
from server.endpoints.rerank.schema import RerankRequest
from server.endpoints.scoring.route import score
from server.endpoints.scoring.schema import PAIRED, ScoreRequest
from server.errors import bad_request
from server.schema.base import BodyModel
from server.schema.openapi import describes_any

router = APIRouter(tags=["generation"], route_class=PlainRoute)

_ROUTES: dict[type[BodyModel], tuple[str, Callable[[Request], Awaitable[Response]]]] = {
    ChatRequest: ("/v1/chat/completions", create_chat_completion),
    CompletionRequest: ("/v1/completions", create_completion),
    EmbeddingsRequest: ("/v1/embeddings", embeddings),
    RerankRequest: ("/v1/rerank", rerank),
    ScoreRequest: ("/v1/score", score),
}
_RANKED = frozenset({"documents", "texts"})
_SCORED = frozenset({"items"}.union(*PAIRED))
_NAMES = ("messages", "prompt", "input", "query", *sorted(_RANKED | _SCORED))
_Fields = msgspec.defstruct("_Fields", [(name, msgspec.Raw, msgspec.Raw()) for name in _NAMES])
"""The fields that tell kinds of bodies apart; values and other fields are passed over, so a large
body takes no memory and some 30 ms."""


@router.post("/invocations", **describes_any(*_ROUTES))
async def invocations(request: Request) -> Response:
    """Answer a body as the route does that its fields belong to."""
    path, handle = _ROUTES[_kind_of(await context_of(request).bodies.peek(request))]
    request.scope["path"] = request.scope.get("root_path", "") + path
    return await handle(request)


def _kind_of(raw: bytearray) -> type[BodyModel]:
    """The kind of body that has such fields; a null is as if it were left out."""
    try:
        fields = msgspec.structs.asdict(msgspec.json.decode(raw, type=_Fields))
    except (msgspec.DecodeError, RecursionError) as error:
        words = f"the body is not a JSON object: {error}"
        raise bad_request(None, words, "invalid_json") from None
    given = {name for name, value in fields.items() if bytes(value) not in (b"", b"null")}
    for name, kind in (
        ("messages", ChatRequest),
        ("prompt", CompletionRequest),
        ("input", EmbeddingsRequest),
    ):
        if name in given:
            return kind
    if "query" in given and given & _RANKED:
        return RerankRequest
    if given & _SCORED:
        return ScoreRequest
    raise bad_request(
        None,
        "the body must have messages, prompt, input, query with documents, items, or two sides of "
        "pairs",
        "invalid_field",
    )
