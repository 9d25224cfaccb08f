"""Kinds of fields that several request bodies share, with their limits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import CoreSchema, core_schema

from sampling.params import SEED_MAX, SEED_MIN, LogprobsMode
from server.schema.base import InnerModel, shown

MAX_STOP_STRINGS = 128
MAX_STOP_CHARS = 512
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 1024
MAX_BIASES = 16384
MAX_NAMED_KEYS = 8
"""Keys that are no token ids and are named in the error."""
MAX_ALLOWED_IDS = 1 << 18
MAX_NAME_CHARS = 1024
MAX_TEXT_CHARS = MAX_TOKENS = 1 << 21
"""Limits of `/tokenize` and `/detokenize`; prompts are bounded by the context."""

Seed = Annotated[int, Field(ge=SEED_MIN, le=SEED_MAX)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
BiasValue = Annotated[float, Field(ge=-100, le=100)]
Mode = LogprobsMode
PackedFormat = Literal["json", "packed"]
PackedDtype = Literal["float32", "float16", "bfloat16"]
Priority = Annotated[
    int | None,
    Field(
        ge=-(2**31),
        le=2**31 - 1,
        description="Requests of lower priority values run earlier; the default is 0. Other "
        "values need a server that was started with --scheduling-policy priority.",
    ),
]


def _printable(value: str | None) -> str | None:
    """Refuse what would break or forge a line of a log."""
    if value is not None and not value.isprintable():
        raise ValueError(
            f"must not hold line breaks or other unprintable characters, got {shown(value)}"
        )
    return value


RequestId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=256,
        description="The reply's id ends in this name. It must be printable; it need not be "
        "unique.",
    ),
    AfterValidator(_printable),
]


def as_list(value: Any, rule: str, item_of: Callable[[str], Any] = str) -> list[Any]:
    """A list as it is, or the one item that a text is short for.

    Raises:
        ValueError: it is neither; the message begins with the rule.
    """
    if isinstance(value, str):
        return [item_of(value)]
    if not isinstance(value, list):
        raise ValueError(f"must be {rule}, got {shown(value)}")
    return value


def _one_or_many(value: Any) -> list[Any]:
    return as_list(value, "a string or a list of strings")


def list_or(other: Any, listed: Any) -> WrapValidator:
    """What reads a list as `listed` and anything else as `other`, without their union, whose errors
    would name its members."""
    of_list, of_other = TypeAdapter[Any](listed), TypeAdapter[Any](other)

    def read(value: Any, _: object) -> Any:
        reader = of_list if isinstance(value, list) else of_other
        return reader.validate_python(value, strict=True)

    return WrapValidator(read)


StopField = Annotated[
    list[StopString],
    Field(max_length=MAX_STOP_STRINGS),  # checked before any item is
    BeforeValidator(_one_or_many, json_schema_input_type=StopString | list[StopString]),
]


def _checked_biases(value: Any) -> Any:
    """Refuse keys that are no ids, ids named twice, and far too many of them."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASES:
        raise ValueError(f"is too long: at most {MAX_BIASES}, got {len(value)} token ids")
    keys: dict[int, str] = {}
    others = [key for key in value if not (key.isascii() and key.isdigit()) or len(key) > 10]
    if others:
        named = ", ".join(map(shown, others[:MAX_NAMED_KEYS]))
        raise ValueError(f"must have token ids as keys, got {named}")
    for key in value:
        if (first := keys.setdefault(int(key), key)) is not key:
            raise ValueError(f"must name each token id once, got {shown(first)} and {shown(key)}")
    return value


_Biases = Annotated[dict[str, BiasValue], Field(max_length=MAX_BIASES)]
LogitBias = Annotated[_Biases, BeforeValidator(_checked_biases, json_schema_input_type=_Biases)]
ModelName = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not base64: {error}") from None


Base64 = Annotated[bytes, BeforeValidator(_decoded, json_schema_input_type=str)]
"""Bytes, sent in base64."""


def _refuse(value: Any) -> Any:
    if value is not None:
        raise ValueError(f"is not available yet: leave it out or send null, got {shown(value)}")
    return value


NotYet = Annotated[
    Any,
    AfterValidator(_refuse),
    WithJsonSchema({"type": "null", "description": "This is not available yet: send null only."}),
]
"""A field of vLLM or OpenAI that has no meaning here yet."""

IGNORED = PlainValidator(lambda value: None)
"""What marks a field whose value means nothing, so that it need not be built."""

Accepted = Annotated[
    Any,
    IGNORED,
    WithJsonSchema({"description": "This is accepted and ignored."}),
]
"""A field of OpenAI's that means nothing to a server of one's own."""


class Only:
    """Annotates a field that is not available yet and has defaults besides null."""

    def __init__(self, *defaults: Any) -> None:
        self._defaults = defaults
        self._words = orjson.dumps(defaults[0]).decode()

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        words = f"This is not available yet: send {self._words} or null only."
        return {"enum": [None, *self._defaults], "description": words}

    def _check(self, value: Any) -> Any:
        allowed = [(type(default), default) for default in self._defaults]
        if value is not None and (type(value), value) not in allowed:
            raise ValueError(f"is not available yet: only {self._words} is, got {shown(value)}")
        return value


class Instead:
    """Annotates a field of another route whose meaning has another name here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "null", "description": f"Use `{self._name}` here; send null only."}

    def _check(self, value: Any) -> Any:
        if value is not None:
            raise ValueError(f"is not known here: use {self._name}, got {shown(value)}")
        return value


class StreamOptions(InnerModel):
    """What a stream has besides its text."""

    include_usage: bool | None = Field(
        default=None, description="The stream ends with a chunk that carries usage alone."
    )
    continuous_usage_stats: bool | None = Field(
        default=None,
        description="Every chunk carries the usage so far, unless `include_usage` is false.",
    )
    include_obfuscation: Accepted = None

    @property
    def usage_always(self) -> bool:
        """Whether every chunk carries the usage so far."""
        return bool(self.continuous_usage_stats) and self.include_usage is not False
