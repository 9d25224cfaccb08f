"""Ids and values as fragments of JSON text, so that replies are joined and not built of objects.

What is known of every id (`TokenFragments`) is written once, when the server starts. JSON has no
-inf: it is written as -9999.0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from engine.arrays import Float32Array, Int32Array, Int64Array, LogprobArrays
from server.text.packed import check_finite

MINUS_INFINITY = -9999.0
STEPS_KEPT = 32
"""Steps whose texts are kept: streams of one turn show positions of the last few steps."""
POSITIONS_A_SHOW = 8
"""The texts of a step are made once it was asked for one position in so many."""


def dump(values: npt.NDArray[Any]) -> str:
    """Write an array as JSON: the shortest decimals that round to each float; -inf is -9999.0.

    Raises:
        ApiError: the array holds NaN or +Inf.
    """
    if values.dtype.kind == "f" and not check_finite(values):
        values = np.where(np.isneginf(values), np.float32(MINUS_INFINITY), values)
    raw = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    return raw.decode("ascii")


def texts_of(values: npt.NDArray[Any]) -> list[str]:
    """Write each number of a flat array as JSON."""
    return dump(values)[1:-1].split(",") if len(values) else []


class PositionTexts(NamedTuple):
    """One position: ids as they are, values as JSON."""

    top_ids: list[int]
    top_values: list[str]
    chosen: str
    rank: int


class _Step:
    """A step's arrays, and their texts once they pay."""

    def __init__(self, arrays: LogprobArrays) -> None:
        self.arrays = arrays
        self.num_asked = 0
        self._is_made = False

    def position(self, i: int, num_top: int) -> PositionTexts | None:
        self.num_asked += 1
        if not self._is_made:
            if self.num_asked * POSITIONS_A_SHOW < len(self.arrays.chosen):
                return None
            self._make()
        if self._is_bad[i]:
            return None
        first = i * self._width
        return PositionTexts(
            self._top_ids[i][:num_top],
            self._top_values[first : first + num_top],
            self._chosen[i],
            self._ranks[i],
        )

    def _make(self) -> None:
        """Make the texts; positions that nobody asked for may hold anything, NaN included."""
        arrays = self.arrays
        top, chosen = arrays.top_logprobs, arrays.chosen
        self._width = arrays.num_top
        self._is_bad = ~(_usable(top).all(axis=1) & _usable(chosen))
        self._top_values = texts_of(np.where(_usable(top), top, np.float32(0)).reshape(-1))
        self._chosen = texts_of(np.where(_usable(chosen), chosen, np.float32(0)))
        self._top_ids: list[list[int]] = arrays.top_ids.tolist()
        self._ranks: list[int] = arrays.ranks.tolist()
        self._is_made = True


def _usable(values: Float32Array) -> npt.NDArray[np.bool_]:
    """Whether each value can be written: it is finite, or -inf."""
    usable: npt.NDArray[np.bool_] = values < np.inf  # NaN is not
    return usable


class StepTexts:
    """The texts of the last steps, made once for all streams that show positions of them.

    A stream writes a chunk for each token. To turn the few numbers of one position into text takes
    longer by itself than its share of what is made for a step of hundreds of positions in one go.
    """

    def __init__(self) -> None:
        self._steps: OrderedDict[int, _Step] = OrderedDict()  # by the id of arrays they hold

    def position(self, arrays: LogprobArrays, i: int, num_top: int) -> PositionTexts | None:
        """The texts of position i; None where they do not pay or cannot be written.

        Args:
            arrays: the same object for all positions of a step, [T] positions.
            num_top: top tokens wanted, no more than there are.
        """
        if (step := self._steps.get(id(arrays))) is None:
            self._steps[id(arrays)] = step = _Step(arrays)
            if len(self._steps) > STEPS_KEPT:
                self._steps.popitem(last=False)
        return step.position(i, num_top)


class TokenFragments:
    """The names, keys and bytes of every id as JSON.

    Attributes:
        steps: values of the last steps.
    """

    def __init__(self, texts: Sequence[str], raw: Sequence[bytes]) -> None:
        self.steps = StepTexts()
        # ASCII joins fastest. One table for names too: finding a string in memory is what costs.
        self._keys = [encode_basestring_ascii(text) + ":" for text in texts]
        self._bytes = [orjson.dumps(list(chunk)).decode() for chunk in raw]
        known: dict[str, int] = {}
        classes = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
        self._classes: Int64Array = classes
        self._is_ambiguous: npt.NDArray[np.bool_] = np.bincount(classes)[classes] > 1
        self._ambiguous = self._is_ambiguous.tobytes()

    def names(self, token_ids: Sequence[int], *, as_ids: bool) -> list[str]:
        """The ids' names as JSON strings."""
        if as_ids:
            return [f'"token_id:{token_id}"' for token_id in token_ids]
        return [key[:-1] for key in map(self._keys.__getitem__, token_ids)]

    def byte_lists(self, token_ids: Sequence[int]) -> list[str]:
        """The ids' bytes as JSON lists."""
        return list(map(self._bytes.__getitem__, token_ids))

    def plain_keys(self, token_ids: Sequence[int], *, as_ids: bool) -> list[str] | None:
        """Write `"name":` for each id of one row; None where two of them have one name."""
        if as_ids:
            return [f'"token_id:{token_id}":' for token_id in token_ids]
        if any(map(self._ambiguous.__getitem__, token_ids)):
            doubtful = [i for i in token_ids if self._ambiguous[i]]
            if len({int(self._classes[i]) for i in doubtful}) < len(doubtful):
                return None
        return list(map(self._keys.__getitem__, token_ids))

    def keys(
        self, token_ids: Int32Array, values: Float32Array, starts: Int64Array, *, as_ids: bool
    ) -> list[str]:
        """Write `"name":` for each id; where ids of a row have one name, the best gets it and the
        others are named by id.

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
    """Write the ids of each row that are kept as lists, without the outermost brackets.

    Args:
        token_ids: int32 [n, m], none negative.
        keep: bool [n, m], true in the first column.
    """
    return dump(np.where(keep, token_ids, -1))[1:-1].replace(",-1", "")


def objects_of(keys: list[str], values: list[list[str]], starts: list[int]) -> str:
    """Write objects with commas between: after each of `keys`, one text of every list in `values`.

    Args:
        keys: `"name":`.
        starts: where each object begins among the keys; no object is empty.
    """
    if not keys:
        return ""
    before = [","] * len(keys)
    for i in starts:
        before[i] = "},{"
    before[0] = "{"
    width = 2 + len(values)
    fragments = [""] * (width * len(keys))
    for column, texts in enumerate([before, keys, *values]):
        fragments[column::width] = texts
    return "".join(fragments) + "}"
