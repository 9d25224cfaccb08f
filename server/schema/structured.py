"""Grammars of replies as clients ask for them: `response_format` and `structured_outputs`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from server.schema.base import InnerModel, shown
from server.schema.fields import Only

MAX_REGEX_CHARS = 1 << 16
MAX_GRAMMAR_CHARS = 1 << 16
MAX_PATTERN_CHARS = 256
MAX_CHOICES = 16384
MAX_CHOICE_CHARS = 1 << 18
"""Limits of what is compiled; JSON schemas are bounded as `GrammarSpec` is."""

_SCHEMA_WORDS = "The JSON schema that the text must match."
_WHITESPACE = re.compile(
    r"(?: |\n|\t|\r|\\[nrt]|\\x(?:20|09|0[AaDd])|[\[\](|)?*+]|\{[0-9]+(?:,[0-9]*)?\})*"
)
"""What a regular expression for white space may be written with: it must match nothing else."""


def _schema(value: Any) -> Any:
    if not isinstance(value, dict | bool):
        raise ValueError(f"must be a JSON schema: an object, true or false, got {shown(value)}")
    return value


def _parsed(value: Any) -> Any:
    """Read a value that was given as its JSON text; other values are left as they are."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"must be JSON where it is a string: {error}") from None


def _white(value: str) -> str:
    if not _WHITESPACE.fullmatch(value):
        raise ValueError(
            "may hold spaces, line breaks, tabs, \\n, \\r, \\t, \\x20, brackets and quantifiers "
            "only, "
            f"got {shown(value)}"
        )
    return value


JsonSchema = Annotated[Any, PlainValidator(_schema, json_schema_input_type=dict[str, Any] | bool)]


class SchemaFormat(InnerModel):
    """A JSON schema with a name, as OpenAI has it."""

    name: str | None = Field(None, max_length=256, description="This is accepted and ignored.")
    description: str | None = Field(None, description="This is accepted and ignored.")
    schema_: JsonSchema = Field(alias="schema", description=_SCHEMA_WORDS)
    strict: bool | None = Field(
        None, description="This is accepted and ignored: the schema is always kept to."
    )


class LegacyTag(InnerModel):
    """A piece of text with JSON in it, by the older spelling."""

    begin: str = Field(min_length=1)
    schema_: JsonSchema = Field(alias="schema", description=_SCHEMA_WORDS)
    end: str


class StructuralTag(InnerModel):
    """Text that is free until a trigger is written, and then keeps to a grammar.

    `structures` with `triggers` is the older spelling, `format` the newer; one of them is given.
    """

    type: Literal["structural_tag"] | None = None
    structures: list[LegacyTag] | None = Field(None, min_length=1, max_length=1024)
    triggers: list[str] | None = Field(None, min_length=1, max_length=1024)
    format: dict[str, Any] | None = Field(
        None,
        description="One of xgrammar's formats: const_string, json_schema, regex, grammar, "
        "any_text, sequence, or, tag, triggered_tags, tags_with_separator.",
    )


FormatKind = Literal["text", "json_object", "json_schema", "structural_tag"]


class ResponseFormat(InnerModel):
    """What the reply's text must be: anything, a JSON object, or JSON of a schema."""

    type: FormatKind
    json_schema: SchemaFormat | None = Field(None, description='Needs the type "json_schema".')
    structures: list[LegacyTag] | None = Field(None, min_length=1, max_length=1024)
    triggers: list[str] | None = Field(None, min_length=1, max_length=1024)
    format: dict[str, Any] | None = None


def _known_type(value: Any) -> Any:
    """Refuse a type nobody knows with one sentence, not with one of each field."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("json_object", "json", "json_schema"):  # where llama.cpp or Hugging Face have it
        for name in ("schema", "value"):
            if name in value and len(value) == 2:
                return {"type": "json_schema", "json_schema": {"schema": value[name]}}
    if kind == "regex" and len(value) == 2 and "value" in value:  # Hugging Face's
        return {"type": "structural_tag", "format": {"type": "regex", "pattern": value["value"]}}
    if isinstance(kind, str) and kind not in get_args(FormatKind):
        kinds = ", ".join(get_args(FormatKind))
        raise ValueError(f"has the type {shown(kind)}; types are {kinds}")
    return value


ResponseFormatField = Annotated[ResponseFormat, BeforeValidator(_known_type)]


def _bounded_choices(choices: list[str]) -> list[str]:
    total = sum(map(len, choices))
    if total > MAX_CHOICE_CHARS:
        raise ValueError(f"is too long: at most {MAX_CHOICE_CHARS} characters, got {total}")
    return choices


Choices = Annotated[
    list[str], Field(min_length=1, max_length=MAX_CHOICES), AfterValidator(_bounded_choices)
]


SchemaOrText = Annotated[
    Any,
    PlainValidator(
        lambda value: _schema(_parsed(value)), json_schema_input_type=dict[str, Any] | bool | str
    ),
]
TagOrText = Annotated[
    StructuralTag, BeforeValidator(_parsed, json_schema_input_type=StructuralTag | str)
]
WhitespacePattern = Annotated[
    str, Field(min_length=1, max_length=MAX_PATTERN_CHARS), AfterValidator(_white)
]


class StructuredOutputs(InnerModel):
    """The grammar of the reply's text, at most one of the first six, and how strictly it is read.

    The options hold for a grammar of `response_format` too.
    """

    json_: SchemaOrText | None = Field(
        None, alias="json", description="A JSON schema, as an object or as its text."
    )
    json_object: bool | None = Field(None, description="Any JSON object.")
    regex: str | None = Field(
        None,
        max_length=MAX_REGEX_CHARS,
        description="A regular expression for the whole text, in the syntax of Rust's regex crate.",
    )
    choice: Choices | None = Field(None, description="The text is one of these.")
    grammar: str | None = Field(
        None,
        max_length=MAX_GRAMMAR_CHARS,
        description="A grammar in llguidance's Lark syntax or in llama.cpp's GBNF.",
    )
    structural_tag: TagOrText | None = Field(
        None, description="Text that is free until a trigger, as an object or as its JSON text."
    )
    lenient: bool | None = Field(
        None,
        description="Keywords of a JSON schema that cannot be enforced are dropped instead of "
        "refused; the reply lists them as `ignored_keywords`.",
    )
    whitespace_pattern: WhitespacePattern | None = Field(
        None,
        description="A regular expression for white space between JSON's tokens; the default is "
        "one or two spaces or tabs, or a line break with at most 32 of them.",
    )
    disable_any_whitespace: bool | None = Field(
        None, description="JSON has no white space between its tokens."
    )
    disable_additional_properties: Annotated[Any, Only(False)] = None
    disable_fallback: bool | None = Field(None, description="This is accepted: there is none.")
