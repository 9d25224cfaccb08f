"""The base of every request body, and how a body that breaks its rules is answered.

`decode` reads a body from bytes, `validate` from parsed JSON; both raise one `ApiError` that says
every broken rule, or the first `MAX_ERRORS` of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from server.errors import ApiError, ClientNames, bad_request

MAX_ERRORS = 20
"""A refusal names so many broken rules and counts the rest."""
_SHOWN_CHARS = 64


class BodyModel(BaseModel):
    """A request body. It is strict: no unknown field, no string for a number, no boolean for an
    integer.

    Attributes:
        max_values: values in one field of a large body: texts, objects, lists and what they hold.
            A conversation of a million tokens has some ten thousand.
        client_names: what clients call fields of the specs that are made of it, for errors.
    """

    max_values: ClassVar[int] = 1 << 17
    client_names: ClassVar[ClientNames] = ClientNames()
    model_config = ConfigDict(
        strict=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )


class InnerModel(BodyModel):
    """An object within a request body, as strict."""

    @model_validator(mode="before")
    @classmethod
    def _bound_errors(cls, value: Any) -> Any:
        """Refuse an object of far too many fields before an error is made of each."""
        if isinstance(value, dict) and len(value) > MAX_ERRORS:  # few are
            most = len(cls.model_fields) + MAX_ERRORS
            if len(value) > most:
                raise ValueError(f"must have at most {most} fields, got {len(value)}")
        return value


class ReplayedModel(BodyModel):
    """An object of a conversation's history, or a tool.

    Agents send back what another provider sent them, with fields of its own: those that are unknown
    here are accepted without effect.
    """

    model_config = ConfigDict(extra="ignore")


class FieldNames(NamedTuple):
    """The fields that an object of one type has besides `type`.

    Attributes:
        needed: those without which it is refused.
        others: those that it may have.
    """

    needed: frozenset[str]
    others: frozenset[str] = frozenset()


class TypedModel(InnerModel):
    """An object whose `type` says which of its fields it has.

    A null is as if it were left out, whatever its name: clients send back what they once got with
    all fields that their package knows, and packages learn new ones.

    Attributes:
        kinds: the fields by type.
        default_kind: the type of an object that names none; None where it must.
        is_replayed: it is of a conversation's history: fields that its type has not are accepted
            without effect, as those of `ReplayedModel` are.
    """

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": "null"}})

    is_replayed: ClassVar[bool] = False
    kinds: ClassVar[Mapping[str, FieldNames]] = {}
    default_kind: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, value: Any) -> Any:
        """Refuse in one sentence a type that is not served, and fields that its type has not."""
        if not isinstance(value, dict):
            return value
        kind = value.get("type", cls.default_kind)
        fields = cls.kinds.get(kind) if isinstance(kind, str) else None
        if fields is None:
            names = ", ".join(cls.kinds)
            raise ValueError(f"has the type {shown(kind)}, which is not served: types are {names}")
        given = {"type": kind} | {name: own for name, own in value.items() if own is not None}
        if missing := sorted(fields.needed - given.keys()):
            raise ValueError(f"of type {kind} needs {', '.join(missing)}")
        if unknown := given.keys() - {"type"} - fields.needed - fields.others:
            if not cls.is_replayed:
                raise ValueError(f"of type {kind} has the unknown field {shown(min(unknown))}")
            return {name: own for name, own in given.items() if name not in unknown}
        return given


Body = TypeVar("Body", bound=BodyModel)


def decode(kind: type[Body], raw: bytes) -> Body:
    """Read a body of the given kind.

    Raises:
        ApiError: names each field that breaks a rule, the rule and the value.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(None, f"the body is not valid JSON: {error}", "invalid_json") from None
    return validate(kind, value)


def validate(kind: type[Body], value: Any) -> Body:
    """Make a body of the given kind from parsed JSON; raises `ApiError` as `decode` does."""
    if not isinstance(value, dict):
        raise bad_request(None, f"the body must be a JSON object, got {shown(value)}")
    known = kind.model_fields  # which pydantic looks up anew each time
    if len(value) > len(known) + MAX_ERRORS:
        # Pydantic would make an error of each unknown field, however many there are.
        raise unknown_fields(kind, [name for name in value if name not in known])
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise _refusal(kind, errors[:MAX_ERRORS], len(errors) - MAX_ERRORS) from None


def unknown_fields(kind: type[BodyModel], names: list[str]) -> ApiError:
    """The refusal of fields that the body's kind does not have."""
    errors = [
        ErrorDetails(type="extra_forbidden", loc=(name,), msg="", input=None)
        for name in names[:MAX_ERRORS]
    ]
    return _refusal(kind, errors, len(names) - len(errors))


def _refusal(kind: type[BodyModel], errors: list[ErrorDetails], num_more: int) -> ApiError:
    message = "; ".join(_sentence(kind, error) for error in errors)
    if num_more > 0:
        message += f" (and {num_more} more)"
    return bad_request(field_path(errors[0]["loc"]) or None, message, "invalid_field")


def _sentence(kind: type[BodyModel], error: ErrorDetails) -> str:
    """Which field breaks which rule, and with which value."""
    param = field_path(error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{param} {_rule(error)}" if param else _rule(error)
    name, is_on_top = str(error["loc"][-1]), len(error["loc"]) == 1
    may_be_near = is_on_top and len(name) < _SHOWN_CHARS
    near = difflib.get_close_matches(name, kind.model_fields, 1) if may_be_near else []
    return f"unknown field {param!r}" + (f" (did you mean {near[0]!r}?)" if near else "")


ONE_OF = "\0"
"""What the tags of a union's types begin with: they are no fields, and paths leave them out."""


def field_path(loc: tuple[int | str, ...]) -> str:
    """Write where in a body a value is: `stop[3]` or `stream_options.include_usage`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(ONE_OF):
            name = part if len(part) <= _SHOWN_CHARS else f"{part[:_SHOWN_CHARS]}…"
            path += f".{name}" if path else name
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


def is_deeper(value: Any, max_depth: int) -> bool:
    """Whether parsed JSON has more levels of objects and lists than `max_depth`."""
    level = [value]
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def shown(value: Any) -> str:
    """Write a value as JSON has it, cut short: never all of a long one."""
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
