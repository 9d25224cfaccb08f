"""The base of every wire type, and how a body that breaks its rules is answered."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from sampling.params import ParameterError
from server.errors import ApiError, bad_request

_SHOWN_CHARS = 64


class WireModel(BaseModel):
    """Strict: no unknown field, no string for a number, no boolean for an integer."""

    model_config = ConfigDict(
        strict=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )


Wire = TypeVar("Wire", bound=WireModel)


def decode(wire: type[Wire], raw: bytes) -> Wire:
    """The body as `wire`; raises `ApiError` naming the field, the rule and the value."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(None, f"the body is not valid JSON: {error}", "invalid_json") from None
    return validate(wire, body)


def validate(wire: type[Wire], body: Any) -> Wire:
    """A parsed body as `wire`."""
    if not isinstance(body, dict):
        raise bad_request(None, f"the body must be a JSON object, got {shown(body)}")
    try:
        return wire.model_validate(body)
    except ValidationError as error:
        raise _refusal(wire, error) from None
    except ParameterError as error:
        raise bad_request(error.param, str(error)) from None


def _refusal(wire: type[WireModel], error: ValidationError) -> ApiError:
    errors = error.errors(include_url=False)
    first = errors[0]
    param = field_path(first["loc"])
    message = f"{param} {_rule(first)}" if param else _rule(first)
    if first["type"] == "extra_forbidden":
        message = f"unknown field {param!r}"
        close = difflib.get_close_matches(str(first["loc"][-1]), wire.model_fields, n=1)
        message += f"; did you mean {close[0]!r}?" if close else ""
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    return bad_request(param or None, message, "invalid_field")


def field_path(loc: tuple[int | str, ...]) -> str:
    """`stop[3]` or `stream_options.include_usage`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "none_required": "null",
}


def _rule(error: ErrorDetails) -> str:
    """What the value should have been, and what it is."""
    kind, got = error["type"], f"got {shown(error['input'])}"
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, {got}"
    match kind:
        case "missing":
            return "is required"
        case "greater_than_equal":
            return f"must be at least {_limit(context['ge'])}, {got}"
        case "greater_than":
            return f"must be above {_limit(context['gt'])}, {got}"
        case "less_than_equal":
            return f"must be at most {_limit(context['le'])}, {got}"
        case "too_long" | "string_too_long":
            return f"is too long: at most {context['max_length']}, {got}"
        case "too_short" | "string_too_short":
            return f"is too short: at least {context['min_length']}, {got}"
        case "literal_error":
            return f"must be {context['expected']}, {got}"
        case "value_error":
            return str(context["error"])
    return f"is not valid: {error['msg']}, {got}"


def _limit(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(value: Any) -> str:
    """A value as JSON would have it, cut short; never all of a long one."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        cut = value[:_SHOWN_CHARS]
        text = orjson.dumps(cut).decode()
        return text if len(cut) == len(value) else f"{text}… ({len(value)} characters)"
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    return repr(value)[:_SHOWN_CHARS]
