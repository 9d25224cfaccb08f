"""Grammars as llguidance's serialised source, whatever a request wrote them in."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from server.structured.lark import choice, json_value, lark_of, regex
from server.structured.spec import GrammarSpec
from server.structured.structural_tags import TagWriter
from server.structured.subschemas import Node, with_options

_OWN_TOKENS = '%llguidance {"no_forcing": true}'
"""All tokens may come that the grammar's texts begin with. By default llguidance allows a single
one wherever the text is known, the one its tokenizer would write: the distribution would then not
be the model's, restricted to the grammar."""


def source_of(spec: GrammarSpec, special_ids: Mapping[str, int]) -> str:
    """The source of any grammar but a JSON schema's; raises `ApiError`.

    Args:
        special_ids: ids of special tokens by their texts.
    """
    match spec.kind:
        case "regex":
            return _serialized([{"lark_grammar": f"start: {regex(spec.value, spec.param)}"}])
        case "choice":
            return _serialized([{"lark_grammar": choice(spec.value)}])
        case "grammar":
            return _serialized([{"lark_grammar": lark_of(spec.value, spec.param)}])
    writer = TagWriter(special_ids, spec.whitespace)
    return _serialized(writer.write(spec.value, spec.param))


def schema_source(schema: Node | bool, spec: GrammarSpec) -> str:
    """The source of a JSON schema, which may be another than the request's own.

    Raises:
        ApiError: see `with_options`.
    """
    value = json_value(schema, spec.whitespace, spec.param)
    return _serialized([{"lark_grammar": f"start: {value}"}])


def checked_schema(schema: Node | bool, spec: GrammarSpec) -> str:
    """The source by which a JSON schema is checked: what is said against it names no lines.

    Raises:
        ApiError: see `with_options`.
    """
    schema = with_options(schema, spec.whitespace, spec.param)
    return orjson.dumps({"grammars": [{"json_schema": schema}]}).decode()


def _serialized(grammars: list[dict[str, str]]) -> str:
    first, *others = grammars
    whole = {**first, "lark_grammar": f"{first['lark_grammar']}\n{_OWN_TOKENS}\n"}
    return orjson.dumps({"grammars": [whole, *others]}).decode()
