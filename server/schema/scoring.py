"""`POST /generative_scoring` and `POST /v1/score` as clients write them."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, PlainValidator

from engine.request import Int32Array
from sampling.params import MAX_LOGPROB_TOKEN_IDS
from server.schema.base import WireModel, shown
from server.schema.fields import Accepted, ModelName, PackedFormat, Priority, RequestId
from server.schema.ids import TokenId, good_ids, id_array

MAX_LABEL_TOKENS = 64
MAX_ITEMS = 1 << 16


class IdLists(NamedTuple):
    """Lists of ids, end to end: int32 [lens.sum()] and int32 [N]."""

    token_ids: Int32Array
    lens: Int32Array


def id_lists(value: list[Any]) -> IdLists:
    """Lists of ids as arrays, without a look at each; raises `ValueError` naming the odd one."""
    if set(map(type, value)) != {list}:
        at = next(i for i, item in enumerate(value) if not isinstance(item, list))
        raise ValueError(
            f"must hold lists of token ids only, as its first item is, got {shown(value[at])} "
            f"at [{at}]"
        )
    lens = np.fromiter(map(len, value), dtype=np.int32, count=len(value))
    if not lens.all():
        raise ValueError(f"must not be empty, got an empty list at [{int(lens.argmin())}]")
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
        if not item:
            raise ValueError(f"must not be empty, got an empty string at [{at}]")
    return value


def _labels(value: Any) -> list[list[int]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of ids or of lists of ids, not empty, got {shown(value)}")
    if len(value) > MAX_LOGPROB_TOKEN_IDS:
        raise ValueError(f"must be at most {MAX_LOGPROB_TOKEN_IDS} labels, got {len(value)}")
    labels = [item if isinstance(item, list) else [item] for item in value]
    lists = id_lists(labels)
    if lists.lens.max() > MAX_LABEL_TOKENS:
        at = int(lists.lens.argmax())
        limit, got = MAX_LABEL_TOKENS, int(lists.lens[at])
        raise ValueError(f"must be at most {limit} tokens a label, got {got} at [{at}]")
    return labels


_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Items = Annotated[list[_Text], Field(min_length=1)] | Annotated[list[_Ids], Field(min_length=1)]
_LabelIds = Annotated[
    list[TokenId | Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LABEL_TOKENS)]],
    Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS),
]


class ScoringFields(WireModel):
    """How likely labels are after a query and each of some items."""

    model: ModelName | None = Field(None, description="A name of `/v1/models`.")
    query: Annotated[
        str | Int32Array, PlainValidator(_query, json_schema_input_type=_Text | _Ids)
    ] = Field(description="What all items share: a text or token ids.")
    items: Annotated[
        list[str] | IdLists, PlainValidator(_items, json_schema_input_type=_Text | _Items)
    ] = Field(description="Texts or lists of token ids, each after (or before) the query.")
    labels: Annotated[list[_Text], Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)] | None = (
        Field(None, description="Texts whose likelihood is asked, of any number of tokens.")
    )
    label_token_ids: Annotated[
        list[list[int]] | None, PlainValidator(_labels, json_schema_input_type=_LabelIds | None)
    ] = Field(None, description="The same as ids, or lists of ids; instead of `labels`.")
    apply_softmax: bool | None = Field(
        None, description="Share the mass among the labels; else it is that of all continuations."
    )
    item_first: bool | None = Field(
        None, description="Put each item before the query; the query is then computed each time."
    )
    add_special_tokens: bool | None = Field(
        None, description="Let the tokenizer add to a query's text; true by default."
    )
    logprobs_format: PackedFormat | None = Field(
        None, description='"packed": base64 of little-endian arrays instead of lists.'
    )
    priority: Priority = None
    request_id: RequestId = None
    user: Accepted = None


class GenerativeScoringRequest(ScoringFields):
    """As vLLM has it: softmax over the labels by default, and a score of the first of them."""


class ScoreRequest(ScoringFields):
    """As SGLang has it: a list of scores an item, without softmax by default."""
