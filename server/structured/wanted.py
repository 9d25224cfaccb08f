"""Which grammar a request asks for, in one of two fields."""

from __future__ import annotations

from typing import Any

import msgspec

from server.errors import ApiError, bad_request
from server.schema.structured import ResponseFormat, StructuralTag, StructuredOutputs
from server.structured.spec import COMPACT, WHITESPACE, GrammarSpec

_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_ALIASES = {"json": "json_"}


def wanted_grammar(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> GrammarSpec | None:
    """The grammar that the two fields of a body ask for; None for none.

    Raises:
        ApiError: there are two, or something is missing.
    """
    found = _of_response_format(response_format)
    if structured is None:
        return found
    for kind in _KINDS:
        value = getattr(structured, _ALIASES.get(kind, kind))
        if value is None or (kind == "json_object" and value is False):
            continue
        param = f"structured_outputs.{kind}"
        if found is not None:
            raise two_grammars(found, param)
        found = _of_structured(kind, value, param)
    whitespace = _whitespace(structured)
    if found is None:
        return None
    return msgspec.structs.replace(found, whitespace=whitespace, lenient=bool(structured.lenient))


def two_grammars(found: GrammarSpec, param: str) -> ApiError:
    """The refusal of a grammar in field `param` beside one that was found."""
    return bad_request(param, f"only one grammar may be given, got {found.param} and {param}")


def _of_response_format(asked: ResponseFormat | None) -> GrammarSpec | None:
    if asked is None:
        return None
    _check_members(asked)
    match asked.type:
        case "text":
            return None
        case "json_object":
            return json_answer({"type": "object"}, "response_format")
        case "structural_tag":
            tag = StructuralTag(
                structures=asked.structures, triggers=asked.triggers, format=asked.format
            )
            return _of_tag(tag, "response_format")
    if asked.json_schema is None:
        param = "response_format.json_schema"
        raise bad_request(param, f'{param} is required with the type "json_schema"')
    return json_answer(asked.json_schema.schema_, "response_format.json_schema.schema")


def json_answer(schema: Any, param: str) -> GrammarSpec:
    """The grammar of a message's content that is JSON of a schema; `param` is where that is."""
    return GrammarSpec("json", schema, param, allows_calls=True)


def _check_members(asked: ResponseFormat) -> None:
    """Refuse what means nothing with this type."""
    members = {
        "json_schema": ["json_schema"],
        "structural_tag": ["structures", "triggers", "format"],
    }
    for kind, names in members.items():
        for name in names:
            if asked.type != kind and getattr(asked, name) is not None:
                param = f"response_format.{name}"
                raise bad_request(
                    param, f'{param} needs the type "{kind}", got the type "{asked.type}"'
                )


def _of_structured(kind: str, value: Any, param: str) -> GrammarSpec:
    match kind:
        case "json":
            return GrammarSpec("json", value, param)
        case "json_object":
            return GrammarSpec("json", {"type": "object"}, param)
        case "structural_tag":
            return _of_tag(value, param)
        case "regex":
            return GrammarSpec("regex", value, param)
        case "choice":
            return GrammarSpec("choice", value, param)
    return GrammarSpec("grammar", value, param)


def _of_tag(tag: StructuralTag, param: str) -> GrammarSpec:
    if (tag.structures is None) != (tag.triggers is None):
        missing = "triggers" if tag.triggers is None else "structures"
        raise _incomplete(param, f"needs {missing} too")
    if (tag.structures is None) == (tag.format is None):
        raise _incomplete(param, "needs either format, or structures and triggers")
    if tag.format is not None:
        return GrammarSpec("structural_tag", tag.format, f"{param}.format")
    structures, triggers = tag.structures or (), tuple(tag.triggers or ())
    for i, each in enumerate(structures):
        if not each.begin.startswith(triggers):
            where = f"{param}.structures[{i}].begin"
            raise bad_request(where, f"{where} must begin with one of {param}.triggers")
    tags = [
        {
            "begin": each.begin,
            "content": {"type": "json_schema", "json_schema": each.schema_},
            "end": each.end,
        }
        for each in structures
    ]
    value = {"type": "triggered_tags", "triggers": tag.triggers, "tags": tags}
    return GrammarSpec("structural_tag", value, param)


def _incomplete(param: str, words: str) -> ApiError:
    return bad_request(param, f"{param} {words}")


def _whitespace(structured: StructuredOutputs) -> str:
    pattern = structured.whitespace_pattern
    if not structured.disable_any_whitespace:
        return WHITESPACE if pattern is None else pattern
    if pattern is not None:
        param = "structured_outputs.whitespace_pattern"
        raise bad_request(param, f"{param} contradicts disable_any_whitespace")
    return COMPACT
