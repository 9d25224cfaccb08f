"""The OpenAPI page. Routes read their bodies themselves, so FastAPI does not know the types."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.responses import Response

from server.schema.base import BodyModel
from server.schema.ids import TOKEN_ID_TITLE
from server.schema.query import QueryModel
from server.schema.replies import ErrorReply

_REF = "#/components/schemas/{model}"
_bodies: dict[str, type[BodyModel]] = {}
"""Types of bodies that `describes` refers to, by name."""
_ERRORS = {
    400: "The request breaks a rule; `param` names the field.",
    401: "No valid API key.",
    404: "No such model or route.",
    409: "The engine is in another state; `code` names it.",
    413: "The body is over --max-body-bytes.",
    415: "The body is not application/json.",
    422: "The request breaks a rule; `loc` names the field.",
    429: "Too many prompts wait; see Retry-After.",
    500: "The engine failed.",
    503: "The engine is down, or the server is shutting down.",
}


def replies(
    success: type[BaseModel] | None, *statuses: int, error: type[BaseModel] = ErrorReply
) -> dict[int | str, dict[str, Any]]:
    """Describe a route's reply and its errors: FastAPI's `responses`."""
    ok: dict[str, Any] = {"description": "Success"}
    if success is not None:
        ok["model"] = success
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": error, "description": _ERRORS[status]}
        for status in sorted({401, 503, *statuses})
    }
    return {200: ok, **errors}


CHUNKS = "With `stream`: chunks of the same shape, then `data: [DONE]`."
NAMED_EVENTS = "With `stream`: events named by their types."


def describes(
    kind: type[BodyModel],
    success: type[BaseModel] | None,
    *,
    stream: str | None = None,
    error: type[BaseModel] = ErrorReply,
    refused: int = 400,
) -> dict[str, Any]:
    """Describe a route that reads a body of this kind: arguments of FastAPI's decorators.

    Args:
        stream: what a stream has; None where there is none.
        refused: the status of a body that breaks a rule.
    """
    responses = replies(success, refused, 404, 413, 415, 429, 500, error=error)
    if stream is not None:
        responses[200]["content"] = _stream(stream)
    return {"responses": responses, "openapi_extra": {"requestBody": _body(_ref(kind))}}


def describes_any(*kinds: type[BodyModel]) -> dict[str, Any]:
    """Describe a route that reads a body of any of these kinds and answers as theirs do."""
    schema = {"anyOf": [_ref(kind) for kind in kinds]}
    responses = replies(None, 400, 404, 413, 415, 429, 500)
    responses[200]["content"] = _stream(CHUNKS)
    return {"responses": responses, "openapi_extra": {"requestBody": _body(schema)}}


def steers(
    kind: type[BodyModel],
    success: type[BaseModel] | None,
    *,
    may_be_empty: bool = False,
    refusal: type[BaseModel] = ErrorReply,
) -> dict[str, Any]:
    """Describe a route that changes the engine's state, which may not allow it.

    Args:
        may_be_empty: the body may be left out.
        refusal: the reply of a 400.
    """
    described = describes(kind, success)
    described["openapi_extra"]["requestBody"]["required"] = not may_be_empty
    described["responses"] |= replies(success, 400, 409)
    described["responses"][400]["model"] = refusal
    return described


def without_content(described: dict[str, Any]) -> dict[str, Any]:
    """The same route, whose success has no content."""
    return described | {"response_class": Response}


def as_text(described: dict[str, Any], *statuses: int) -> dict[str, Any]:
    """The same route, whose replies of success, and of these statuses, are texts."""
    for status in (200, *statuses):
        described["responses"][status]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return without_content(described)


def _stream(words: str) -> dict[str, Any]:
    return {"text/event-stream": {"schema": {"description": words}}}


def _ref(kind: type[BodyModel]) -> dict[str, Any]:
    """Refer to a type of body, which the page then has."""
    _bodies[kind.__name__] = kind
    return {"$ref": _REF.format(model=kind.__name__)}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def queries(kind: type[QueryModel], success: type[BaseModel] | None) -> dict[str, Any]:
    """Describe a route with parameters in its query: arguments of FastAPI's decorators."""
    fields = kind.model_json_schema()["properties"]
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.pop("description", ""),
            "schema": schema,
        }
        for name, schema in fields.items()
    ]
    responses = replies(success, 400, 409, 500)
    return {"responses": responses, "openapi_extra": {"parameters": parameters}}


def path_parameter(name: str, words: str) -> dict[str, Any]:
    """Describe a parameter in a route's path."""
    schema = {"type": "string"}
    return {"name": name, "in": "path", "required": True, "description": words, "schema": schema}


def _bounded(schema: Any, vocab_size: int) -> Any:
    """A copy of a schema in which token ids are bounded by the vocabulary's size."""
    if isinstance(schema, list):
        return [_bounded(item, vocab_size) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {key: _bounded(value, vocab_size) for key, value in schema.items()}
    if schema.get("title") == TOKEN_ID_TITLE:
        bounded["maximum"] = vocab_size - 1
    return bounded


def add_openapi(app: FastAPI, vocab_size: int) -> None:
    """Let `/openapi.json` describe request bodies too, with the bound of this model's ids."""

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
            for name, kind in sorted(_bodies.items()):
                schema = _bounded(kind.model_json_schema(ref_template=_REF), vocab_size)
                schemas.update(schema.pop("$defs", {}))
                schemas[name] = schema
            page["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            page["security"] = [{"key": []}, {}]  # whether keys are needed, the server decides
            app.openapi_schema = page
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
