"""`POST /generative_scoring` and `POST /v1/score` as clients write them, and their replies.

The server writes replies without these types; the OpenAPI page describes them.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, model_validator

from engine.arrays import Int32Array
from sampling.params import MAX_LOGPROB_TOKEN_IDS
from server.schema.base import BodyModel, shown
from server.schema.fields import Accepted, ModelName, PackedFormat, Priority, RequestId, as_list
from server.schema.ids import IdLists, TokenId, good_ids, id_array
from server.schema.replies import PackedArray

MAX_LABEL_TOKENS = 64
MAX_ITEMS = 1 << 16


def id_lists(value: list[Any]) -> IdLists:
    """Make arrays of lists of ids without a look at each id.

    Raises:
        ValueError: names the item that is not a list of ids.
    """
    if set(map(type, value)) != {list}:
        at = next(i for i, item in enumerate(value) if not isinstance(item, list))
        raise ValueError(
            f"must hold lists of token ids only, as its first item is, got {shown(value[at])} "
            f"at [{at}]"
        )
    lens = np.fromiter(map(len, value), dtype=np.int32, count=len(value))
    token_ids = good_ids(list(chain.from_iterable(value)))
    if token_ids is None:
        token_ids = np.concatenate([_ids_at(at, item) for at, item in enumerate(value)])
    return IdLists(token_ids, lens)


def _ids_at(at: int, item: Any) -> Int32Array:
    try:
        return id_array(item)
    except ValueError as error:
        raise ValueError(f"{error} at [{at}]") from None


def _query(value: Any) -> str | Int32Array:
    if not isinstance(value, str | list):
        raise ValueError(f"must be a string or a list of token ids, got {shown(value)}")
    if not value:
        raise ValueError(f"must not be empty, got {shown(value)}")
    return value if isinstance(value, str) else id_array(value)


def _items(value: Any) -> list[str] | IdLists:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"must be a list of strings or of lists of ids, got {shown(value)}")
    if not value:
        raise ValueError("must not be empty, got an empty list")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"must be at most {MAX_ITEMS} items, got {len(value)}")
    return _texts(value) if isinstance(value[0], str) else id_lists(value)


def _texts(value: list[Any]) -> list[str]:
    for at, item in enumerate(value):
        if not isinstance(item, str):
            raise ValueError(
                f"must hold strings only, as its first item is, got {shown(item)} at [{at}]"
            )
    return value


def _labels(value: Any) -> list[list[int]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of ids or of lists of ids, not empty, got {shown(value)}")
    if len(value) > MAX_LOGPROB_TOKEN_IDS:
        raise ValueError(f"must be at most {MAX_LOGPROB_TOKEN_IDS} labels, got {len(value)}")
    labels = [item if isinstance(item, list) else [item] for item in value]
    lens = id_lists(labels).lens
    if not lens.all():
        raise ValueError(f"must not hold empty labels, got an empty list at [{int(lens.argmin())}]")
    if lens.max() > MAX_LABEL_TOKENS:
        at = int(lens.argmax())
        limit, got = MAX_LABEL_TOKENS, int(lens[at])
        raise ValueError(f"must be at most {limit} tokens a label, got {got} at [{at}]")
    return labels


_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Items = (
    Annotated[list[str], Field(min_length=1)] | Annotated[list[list[TokenId]], Field(min_length=1)]
)
_LabelIds = Annotated[
    list[TokenId | Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LABEL_TOKENS)]],
    Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS),
]


class ScoringFields(BodyModel):
    """How likely labels are after a query and each of some items."""

    model: ModelName | None = Field(
        None, description="One of the names that `/v1/models` lists; the default is the first."
    )
    query: Annotated[
        str | Int32Array, PlainValidator(_query, json_schema_input_type=_Text | _Ids)
    ] = Field(description="A text or a list of token ids that all items share.")
    items: Annotated[
        list[str] | IdLists, PlainValidator(_items, json_schema_input_type=str | _Items)
    ] = Field(
        description="Texts or lists of token ids, each of which follows (or precedes) the query. "
        "With an empty item the query is alone."
    )
    labels: Annotated[list[_Text], Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)] | None = (
        Field(None, description="Texts whose likelihood is asked, of any number of tokens.")
    )
    label_token_ids: Annotated[
        list[list[int]] | None, PlainValidator(_labels, json_schema_input_type=_LabelIds | None)
    ] = Field(None, description="Labels as ids or lists of ids; give these or `labels`.")
    apply_softmax: bool | None = Field(
        None,
        description="Scores share the mass among the labels, so that they add up to 1; otherwise "
        "they are probabilities among all continuations.",
    )
    item_first: bool | None = Field(
        None,
        description="Each item comes before the query, which is then computed for each of them.",
    )
    add_special_tokens: bool | None = Field(
        None, description="The tokenizer adds to a query's text; the default is true."
    )
    logprobs_format: PackedFormat | None = Field(
        None,
        description='With "packed", values are base64 of little-endian arrays instead of lists.',
    )
    priority: Priority = None
    request_id: RequestId = None
    user: Accepted = None


class GenerativeScoringRequest(ScoringFields):
    """Score the first label of each item, with softmax over the labels by default, as vLLM does."""


def _one_or_many(value: Any) -> list[Any]:
    return as_list(value, "a text or a list of texts")


_Many = Annotated[
    list[str],
    Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True),
    BeforeValidator(_one_or_many, json_schema_input_type=str | list[str]),
]
PAIRED = (
    ("queries", "documents"),
    ("queries", "items"),
    ("text_1", "text_2"),
    ("data_1", "data_2"),
)
"""The names under which vLLM's clients send the two sides of pairs."""


def _absent() -> Any:
    """The default of fields that only one of two kinds of request has."""
    return None


class ScoreRequest(ScoringFields):
    """Score every label of each item, without softmax by default, as SGLang does.

    With two lists of texts under vLLM's names: how relevant the second of a pair is to the first.
    """

    query: Annotated[
        str | Int32Array, PlainValidator(_query, json_schema_input_type=_Text | _Ids)
    ] = Field(
        default_factory=_absent, description="A text or a list of token ids that all items share."
    )
    items: Annotated[
        list[str] | IdLists, PlainValidator(_items, json_schema_input_type=str | _Items)
    ] = Field(
        default_factory=_absent,
        description="Texts or lists of token ids, each of which follows the query.",
    )
    queries: _Many | None = None
    documents: _Many | None = None
    text_1: _Many | None = None
    text_2: _Many | None = None
    data_1: _Many | None = None
    data_2: _Many | None = None
    instruction: str | None = Field(None, description="Of pairs: what relevance means.")
    use_activation: bool | None = Field(None, description="Of pairs: with false, scores are raw.")

    @model_validator(mode="after")
    def _one_kind(self) -> ScoreRequest:
        """Tell pairs from a query with items by their names."""
        given = [name for name in _SIDES if self._has(name)]
        if not given:
            for name in ("query", "items"):
                if not self._has(name):
                    raise ValueError(f"{name} is required")
            return self
        own = [*given, *(["items"] if self._has("items") else [])]
        if tuple(own) not in PAIRED or self._has("query"):
            names = ", ".join(f"{first} with {second}" for first, second in PAIRED)
            raise ValueError(f"pairs are {names}; got {', '.join(own)}")
        if self.labels is not None or self.label_token_ids is not None:
            raise ValueError("labels are not read of pairs: leave them out")
        first, second = self.sides
        if len(first) not in (1, len(second)):
            raise ValueError(
                f"{own[0]} must be one text or as many as {own[1]}, which are {len(second)}, "
                f"got {len(first)}"
            )
        return self

    @property
    def is_paired(self) -> bool:
        """Whether this is a request of pairs."""
        return not self._has("query")

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The two sides of pairs."""
        for first, second in PAIRED:
            left, right = getattr(self, first), getattr(self, second)
            if left is not None and right is not None:
                if not isinstance(right, list):
                    raise ValueError("items of pairs must be texts")
                return left, right
        raise AssertionError("not a request of pairs")


_SIDES = ("queries", "documents", "text_1", "text_2", "data_1", "data_2")


class ScoredItem(BaseModel):
    """One item. Logprobs are among all continuations, whatever `apply_softmax` says."""

    index: int
    object: Literal["score"]
    score: float = Field(description="The probability of the first label.")
    label_logprobs: list[float] = Field(
        description="The logprob of every label; -inf is written as -9999.0."
    )
    other_logprob: float = Field(
        description="The logprob of all continuations that begin with no label, together."
    )


class ScoringUsage(BaseModel):
    """Nothing is generated; a query that comes first counts once."""

    prompt_tokens: int
    completion_tokens: Literal[0]
    total_tokens: int
    prompt_tokens_details: dict[str, int] = Field(
        description="`cached_tokens` counts the query's tokens that were found computed."
    )


class _ScoringReply(BaseModel):
    id: str
    created: int
    model: str
    usage: ScoringUsage
    warnings: list[str] | None = Field(
        None, description="What about the request makes these scores say little, if anything."
    )


class GenerativeScoringReply(_ScoringReply):
    """Packed replies have `scores`, `label_logprobs` and `other_logprob`; `data` is then empty."""

    object: Literal["list"]
    data: list[ScoredItem]
    scores: PackedArray | None = None
    label_logprobs: PackedArray | None = None
    other_logprob: PackedArray | None = None


class PairScore(BaseModel):
    """The relevance of one pair."""

    index: int
    object: Literal["score"]
    score: float


class PairScoresReply(BaseModel):
    """The reply to pairs, in their order, as vLLM has it."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: dict[str, Any]


class ScoreReply(_ScoringReply):
    """One row for each item, one column for each label."""

    object: Literal["scoring"]
    scores: list[list[float]] | PackedArray
    label_logprobs: list[list[float]] | PackedArray
    other_logprob: list[float] | PackedArray
