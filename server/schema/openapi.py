"""The OpenAPI page: bodies are checked by our own types, so they are described here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from server.schema.base import WireModel
from server.schema.completions import CompletionRequest
from server.schema.ids import TOKEN_ID_TITLE
from server.schema.replies import ErrorReply
from server.schema.scoring import GenerativeScoringRequest, ScoreRequest
from server.schema.tokens import DetokenizeRequest, TokenizeRequest

_REF = "#/components/schemas/{model}"
_WIRE_TYPES: tuple[type[WireModel], ...] = (
    CompletionRequest,
    GenerativeScoringRequest,
    ScoreRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_ERRORS = {
    400: "The request breaks a rule; `param` names the field.",
    401: "No valid API key.",
    404: "No such model or route.",
    413: "The body is over --max-body-bytes.",
    415: "The body is not application/json.",
    429: "Too many prompts wait; see Retry-After.",
    500: "The engine failed.",
    503: "The engine is down, or the server is shutting down.",
}


def replies(success: type[BaseModel] | None, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: its reply and its errors."""
    ok: dict[str, Any] = {"description": "Success"}
    if success is not None:
        ok["model"] = success
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply, "description": _ERRORS[status]}
        for status in sorted({401, 503, *statuses})
    }
    return {200: ok, **errors}


def describes(
    wire: type[WireModel], success: type[BaseModel], *, stream: bool = False
) -> dict[str, Any]:
    """Arguments of a route that reads `wire` from its body."""
    schema = {"$ref": _REF.format(model=wire.__name__)}
    responses = replies(success, 400, 404, 413, 415, 429, 500)
    if stream:
        words = "With `stream`: chunks of the same shape, then `data: [DONE]`."
        responses[200]["content"] = {"text/event-stream": {"schema": {"description": words}}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"responses": responses, "openapi_extra": {"requestBody": body}}


def path_parameter(name: str, words: str) -> dict[str, Any]:
    """A parameter in a route's path."""
    schema = {"type": "string"}
    return {"name": name, "in": "path", "required": True, "description": words, "schema": schema}


def _bounded(schema: Any, vocab_size: int) -> Any:
    """The schema with the vocabulary's size as the bound of token ids."""
    if isinstance(schema, list):
        return [_bounded(item, vocab_size) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {key: _bounded(value, vocab_size) for key, value in schema.items()}
    if schema.get("title") == TOKEN_ID_TITLE:
        bounded["maximum"] = vocab_size - 1
    return bounded


def add_openapi(app: FastAPI, vocab_size: int) -> None:
    """Let `/openapi.json` hold the wire types too, with this model's ids."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            page = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            schemas = page.setdefault("components", {}).setdefault("schemas", {})
            for wire in _WIRE_TYPES:
                schema = _bounded(wire.model_json_schema(ref_template=_REF), vocab_size)
                schemas.update(schema.pop("$defs", {}))
                schemas[wire.__name__] = schema
            app.openapi_schema = page
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
