"""`POST /v1/decisions` as clients of OpenAI write it, with this server's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, WrapValidator

from server.endpoints.decisions.question import (
    MAX_CHOICES,
    MAX_LEVELS,
    MAX_ORDERS,
    MAX_QUESTIONS,
    Labels,
)
from server.schema.base import BodyModel, FieldNames, InnerModel, TypedModel, is_deeper, shown
from server.schema.fields import Accepted, ModelName, Priority, RequestId, Seed, as_list

MAX_ITEMS = MAX_PARTS = 8192
MAX_JSON_DEPTH = 32
MAX_JSON_VALUES = 10_000
MAX_JSON_BYTES = 256 << 10
MAX_VALUES = 4 * MAX_QUESTIONS * MAX_CHOICES
"""Values of the largest request: an option is an object of a value and a description."""
IMAGE = "input_image"
PARTS = frozenset(("input_text", "input_json", "output_text", "refusal"))


def _json_data(value: Any) -> Any:
    """Bound what a JSON part may hold."""
    if not isinstance(value, dict) and not (
        isinstance(value, list) and all(isinstance(each, dict) for each in value)
    ):
        raise ValueError(f"must be an object or a list of objects, got {shown(value)}")
    if is_deeper(value, MAX_JSON_DEPTH):
        raise ValueError(f"must have at most {MAX_JSON_DEPTH} levels")
    if (count := _num_values(value)) > MAX_JSON_VALUES:
        raise ValueError(f"must have at most {MAX_JSON_VALUES} values, got {count}")
    if (size := len(orjson.dumps(value))) > MAX_JSON_BYTES:
        raise ValueError(f"must have at most {MAX_JSON_BYTES} bytes as compact JSON, got {size}")
    return value


def _num_values(value: Any) -> int:
    """The number of values that are no objects or lists; as deep as `is_deeper` allows."""
    if isinstance(value, dict):
        return sum(map(_num_values, value.values()))
    return sum(map(_num_values, value)) if isinstance(value, list) else 1


class DecisionPart(TypedModel):
    """A text, or JSON that is shown as text. Images are refused: only text is served here."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "input_text": FieldNames(frozenset(("text",)), frozenset(("prompt_cache_breakpoint",))),
        "input_json": FieldNames(frozenset(("data",)), frozenset(("prompt_cache_breakpoint",))),
        "output_text": FieldNames(frozenset(("text",)), frozenset(("annotations", "logprobs"))),
        "refusal": FieldNames(frozenset(("refusal",))),
    }

    type: str
    text: str | None = None
    refusal: str | None = None
    data: Annotated[Any, AfterValidator(_json_data)] = None
    annotations: Accepted = None
    logprobs: Accepted = None
    prompt_cache_breakpoint: Annotated[Any, Field(description="Accepted.")] = None

    def shown(self) -> str:
        """The part as text."""
        if self.type == "input_json":
            return orjson.dumps(self.data).decode()
        return self.text or self.refusal or ""


def _parts(value: Any) -> list[Any]:
    """Read a text as one part; images are refused by name."""
    rule = "a text or a list of parts"
    parts = as_list(value, rule, lambda text: {"type": "input_text", "text": text})
    for part in parts[:MAX_PARTS]:
        if isinstance(part, dict) and part.get("type") == IMAGE:
            raise ValueError("holds an image: only text and JSON are served here")
    return parts


Parts = Annotated[
    list[DecisionPart],
    Field(min_length=1, max_length=MAX_PARTS, fail_fast=True),
    BeforeValidator(_parts, json_schema_input_type=str | list[DecisionPart]),
]
"""Parts, or one text in place of them."""
Status = Literal["in_progress", "completed", "incomplete"]
_CALL = frozenset(("id", "namespace", "status"))
_OUTPUT = FieldNames(frozenset(("call_id", "output")), frozenset(("id", "status")))


class DecisionItem(TypedModel):
    """A message, a call, or a call's output."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "message": FieldNames(frozenset(("role", "content")), frozenset(("id", "status", "phase"))),
        "function_call": FieldNames(frozenset(("call_id", "name", "arguments")), _CALL),
        "function_call_output": _OUTPUT,
        "custom_tool_call": FieldNames(frozenset(("call_id", "name", "input")), _CALL),
        "custom_tool_call_output": _OUTPUT,
    }
    default_kind: ClassVar[str | None] = "message"

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Parts | None = None
    id: Accepted = None
    status: Status | None = None


def _as_items(value: Any) -> list[Any]:
    rule = "a text or a list of items"
    return as_list(value, rule, lambda text: {"role": "user", "content": text})


Items = Annotated[
    list[DecisionItem],
    Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True),
    BeforeValidator(_as_items, json_schema_input_type=str | list[DecisionItem]),
]


def _value(value: Any, _: object) -> str | bool:
    if not isinstance(value, str | bool):
        raise ValueError(f"must be a string, true or false, got {shown(value)}")
    return value


class OfferedChoice(InnerModel):
    """One of the answers that a choice allows; true and "true" are two."""

    value: Annotated[str | bool, WrapValidator(_value)]
    description: str | None = None


class OfferedLevel(InnerModel):
    """One of the levels of a score, from the lowest to the highest."""

    label: str
    description: str | None = None


def _distinct(choices: list[OfferedChoice]) -> list[OfferedChoice]:
    seen: dict[tuple[type, str | bool], int] = {}
    for index, choice in enumerate(choices):
        first = seen.setdefault((type(choice.value), choice.value), index)
        if first != index:
            raise ValueError(
                f"must have different values, got {shown(choice.value)} at [{first}] and [{index}]"
            )
    return choices


class DecisionQuestion(TypedModel):
    """A predicate (is it so?), a choice (which one?), or a score (how much?)."""

    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "predicate": FieldNames(frozenset(("instructions",)), frozenset(("name",))),
        "choice": FieldNames(frozenset(("instructions", "choices")), frozenset(("name",))),
        "score": FieldNames(frozenset(("instructions", "levels")), frozenset(("name",))),
    }

    type: str
    name: str | None = Field(None, description="The answer carries it.")
    instructions: Parts | None = None
    choices: (
        Annotated[
            list[OfferedChoice],
            Field(min_length=2, max_length=MAX_CHOICES, fail_fast=True),
            AfterValidator(_distinct),
        ]
        | None
    ) = None
    levels: Annotated[list[OfferedLevel], Field(min_length=2, max_length=MAX_LEVELS)] | None = None


class PromptCacheOptions(InnerModel):
    """With "explicit" and no breakpoint in the input, nothing of the prompt is reused."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class DecisionReasoning(InnerModel):
    """The model thinks about each question before its labels are read."""

    budget: int = Field(ge=1, description="Tokens of each thought, at most.")


class ReadingFields(BodyModel):
    """How this server reads questions, on both endpoints."""

    max_values: ClassVar[int] = MAX_VALUES
    permute: int | None = Field(
        None,
        ge=1,
        le=MAX_ORDERS,
        description="Show options in this many orders, or all that there are, and average.",
    )
    seed: Seed | None = Field(
        None, description="Draws these orders, and thoughts; the default is 0."
    )
    prior: Literal["content_free"] | None = Field(
        None,
        description="Divide each label's probability by what the question gives without a state.",
    )
    diagnostics: bool | None = Field(
        None, description="Answers report the labels' mass, logprobs, and the spread over orders."
    )
    labels: Labels | None = Field(
        None,
        description='With "options" the options\' own texts are read, instead of letters that '
        "stand for them.",
    )
    reasoning: DecisionReasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template; thoughts are off by default."
    )
    cache_salt: str | None = Field(None, description="Only equal salts share cached prefixes.")
    priority: Priority = None
    request_id: RequestId = None


class DecisionsRequest(ReadingFields):
    """Ask questions about a text or a conversation."""

    model: ModelName
    input: Items
    questions: Annotated[
        list[DecisionQuestion], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)
    ]
    prompt_cache_key: str | None = Field(
        None, max_length=1024, description="Only equal keys share cached prefixes."
    )
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    user: Accepted = None
    metadata: Accepted = None
