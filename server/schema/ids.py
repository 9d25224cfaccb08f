"""Token ids as clients send them, made into arrays once and checked against a vocabulary."""

from __future__ import annotations

import struct
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, PlainValidator

from engine.arrays import Int32Array
from server.errors import bad_request
from server.schema.base import shown

ID_MAX = 2**31 - 1
MAX_PROMPT_IDS = 1024
"""Explicit ids of a prompt's position."""

TOKEN_ID_TITLE = "Token id"

TokenId = Annotated[int, Field(ge=0, le=ID_MAX, title=TOKEN_ID_TITLE)]


class IdLists(NamedTuple):
    """Lists of ids, end to end: int32 [lens.sum()] and int32 [N]."""

    token_ids: Int32Array
    lens: Int32Array


def id_array(value: Any) -> Int32Array:
    """A list of ids as int32 [len]; raises `ValueError` unless all are integers in [0, 2**31)."""
    if not isinstance(value, list):
        raise ValueError(f"must be a list of token ids, got {shown(value)}")
    token_ids = good_ids(value)
    if token_ids is None:
        raise _refusal(value)
    return token_ids


def good_ids(values: list[Any]) -> Int32Array | None:
    """Ids as int32 [len]; None unless all are integers in [0, 2**31).

    `struct` refuses everything but integers in range and booleans. Booleans come out as 0 and 1,
    so only the values that did are looked at one by one.
    """
    try:
        packed = struct.Struct(f"{len(values)}i").pack(*values)
    except struct.error:
        return None
    token_ids = np.frombuffer(packed, dtype=np.int32)
    least = token_ids.min(initial=2)
    if least < 2:
        doubtful = np.flatnonzero(token_ids < 2).tolist()
        if least < 0 or set(map(type, map(values.__getitem__, doubtful))) != {int}:
            return None
    return token_ids


def prompt_ids(value: Any) -> Int32Array:
    """Ids for all positions, int32 [J], or a list for each, int32 [N, J], shorter ones padded with
    -1, as which entries may be given too; raises `ValueError` for anything else."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of token ids or of such lists, got {shown(value)}")
    if not isinstance(value[0], list):
        found = id_array(value)
        _check_width(len(found))
        return found
    if odd := next((each for each in value if not isinstance(each, list)), None):
        raise ValueError(f"must hold lists alone, or ids alone, got {shown(odd)}")
    width = max(map(len, value))
    _check_width(width)
    flat = [token_id for each in value for token_id in (*each, *[-1] * (width - len(each)))]
    held = [token_id for token_id in flat if token_id != -1]
    if good_ids(held) is None:
        raise _refusal(held)
    return np.array(flat, dtype=np.int32).reshape(len(value), width)


def _check_width(width: int) -> None:
    if not 1 <= width <= MAX_PROMPT_IDS:
        raise ValueError(f"must have 1 to {MAX_PROMPT_IDS} ids a position, got {width}")


def _refusal(value: list[Any]) -> ValueError:
    for kind in set(map(type, value)) - {int}:
        odd = next(item for item in value if type(item) is kind)
        return ValueError(f"must hold integers only, got {shown(odd)}")
    odd = next(item for item in value if not 0 <= item <= ID_MAX)
    return ValueError(f"must hold ids in [0, {ID_MAX}], got {shown(odd)}")


TokenIdArray = Annotated[Int32Array, PlainValidator(id_array, json_schema_input_type=list[TokenId])]


def check_vocab(param: str, token_ids: Int32Array, vocab_size: int) -> None:
    """Raise `ApiError` naming `param` and the first id the model does not have."""
    if len(token_ids) and int(token_ids.max()) >= vocab_size:
        odd = int(token_ids[token_ids >= vocab_size][0])
        raise bad_request(
            param, f"{param} holds id {odd}; ids of this model are 0 to {vocab_size - 1}"
        )
