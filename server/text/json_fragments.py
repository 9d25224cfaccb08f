"""Ids as pieces of JSON text, made once, so that replies are joined and not built of objects."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from engine.request import Float32Array, Int32Array, Int64Array
from server.text.packed import check_finite

MINUS_INFINITY = -9999.0


def dump(values: npt.NDArray[Any]) -> str:
    """JSON of an array: shortest decimals that round to each float; -inf is -9999.0.

    Raises `ApiError` for NaN and +Inf.
    """
    if values.dtype.kind == "f" and not check_finite(values):
        values = np.where(np.isneginf(values), np.float32(MINUS_INFINITY), values)
    raw = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    return raw.decode("ascii")


def texts_of(values: npt.NDArray[Any]) -> list[str]:
    """JSON of each number of a flat array."""
    return dump(values)[1:-1].split(",") if len(values) else []


class TokenFragments:
    """Names, keys and bytes of every id as JSON."""

    def __init__(self, texts: Sequence[str], raw: Sequence[bytes]) -> None:
        # ASCII joins fastest. One table for names too: finding a string in memory is what costs.
        self._keys = [encode_basestring_ascii(text) + ":" for text in texts]
        self._bytes = [orjson.dumps(list(piece)).decode() for piece in raw]
        known: dict[str, int] = {}
        classes = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
        self._classes: Int64Array = classes
        self._is_ambiguous: npt.NDArray[np.bool_] = np.bincount(classes)[classes] > 1

    def names(self, token_ids: Sequence[int], *, as_ids: bool) -> list[str]:
        """JSON strings."""
        if as_ids:
            return [f'"token_id:{token_id}"' for token_id in token_ids]
        return [key[:-1] for key in map(self._keys.__getitem__, token_ids)]

    def byte_lists(self, token_ids: Sequence[int]) -> list[str]:
        """JSON lists."""
        return list(map(self._bytes.__getitem__, token_ids))

    def keys(
        self, token_ids: Int32Array, values: Float32Array, starts: Int64Array, *, as_ids: bool
    ) -> list[str]:
        """`"name":` of each id; of a row's ids with one name the best has it, others go by id.

        Args:
            starts: where each row begins.
        """
        if as_ids:
            return [f'"token_id:{token_id}":' for token_id in token_ids.tolist()]
        keys = list(map(self._keys.__getitem__, token_ids.tolist()))
        (doubtful,) = self._is_ambiguous[token_ids].nonzero()
        if len(doubtful):
            rows = np.searchsorted(starts, doubtful, side="right")
            names = rows * len(self._classes) + self._classes[token_ids[doubtful]]
            order = np.lexsort((doubtful, -values[doubtful], names))
            taken = np.flatnonzero(np.diff(names[order]) == 0) + 1
            for i in doubtful[order[taken]].tolist():
                keys[i] = f'"token_id:{token_ids[i]}":'
        return keys


def id_rows(token_ids: npt.NDArray[np.int32], keep: npt.NDArray[np.bool_]) -> str:
    """Rows of those ids that are kept, as lists without the outermost brackets.

    Args:
        token_ids: int32 [n, m], none negative. keep: bool [n, m], the first column whole.
    """
    return dump(np.where(keep, token_ids, -1))[1:-1].replace(",-1", "")


def objects_of(keys: list[str], values: list[list[str]], starts: list[int]) -> str:
    """Objects with commas between: each of `keys` with a piece of every one of `values`.

    Args:
        keys: `"name":`. starts: where each object begins, not empty ones.
    """
    if not keys:
        return ""
    before = [","] * len(keys)
    for i in starts:
        before[i] = "},{"
    before[0] = "{"
    width = 2 + len(values)
    pieces = [""] * (width * len(keys))
    for column, texts in enumerate([before, keys, *values]):
        pieces[column::width] = texts
    return "".join(pieces) + "}"
