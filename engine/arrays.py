"""Arrays that cross between frontends and the engine: their types, and logprobs of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
UInt8Array = npt.NDArray[np.uint8]
RouteIds = npt.NDArray[np.integer[Any]]
"""Ids of experts, uint8 or int16."""
Index = slice | npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]


class LogprobArrays(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs of T positions; rows that asked for fewer tops or ids read the first of them.

    The positions may have more than one axis, [rows, slots] in `OutputRing`; indices then count
    along these.

    Attributes:
        chosen: float32 [T], the chosen token's value.
        ranks: int32 [T], 1 for the highest.
        top_ids: int32 [T, K], best first.
        top_logprobs: float32 [T, K].
        explicit: float32 [T, J], values of the request's explicit ids, in its order.
        kept: float32 [T], log of the mass that masks and filters left; 0 where not asked for.
    """

    chosen: Float32Array
    ranks: Int32Array
    top_ids: Int32Array
    top_logprobs: Float32Array
    explicit: Float32Array
    kept: Float32Array

    @property
    def num_top(self) -> int:
        """Top tokens per position, K."""
        return int(self.top_ids.shape[-1])

    @property
    def num_explicit(self) -> int:
        """Explicit ids per position, J."""
        return int(self.explicit.shape[-1])

    @classmethod
    def zeros(cls, shape: tuple[int, ...], num_top: int, num_explicit: int) -> LogprobArrays:
        """Arrays of zeros for positions of this shape, to be filled by `put`."""
        return cls(
            chosen=np.zeros(shape, dtype=np.float32),
            ranks=np.zeros(shape, dtype=np.int32),
            top_ids=np.zeros((*shape, num_top), dtype=np.int32),
            top_logprobs=np.zeros((*shape, num_top), dtype=np.float32),
            explicit=np.zeros((*shape, num_explicit), dtype=np.float32),
            kept=np.zeros(shape, dtype=np.float32),
        )

    @classmethod
    def concat(cls, parts: Sequence[LogprobArrays]) -> LogprobArrays:
        """Positions of all parts, which are equally wide, one part after another."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in cls.__struct_fields__
        }
        return cls(**columns)

    def at(self, index: Index) -> LogprobArrays:
        """Some of the positions: views for a slice, copies for an array of indices or bools."""
        return LogprobArrays(
            chosen=self.chosen[index],
            ranks=self.ranks[index],
            top_ids=self.top_ids[index],
            top_logprobs=self.top_logprobs[index],
            explicit=self.explicit[index],
            kept=self.kept[index],
        )

    def narrow(self, num_top: int, num_explicit: int) -> LogprobArrays:
        """Views of the first `num_top` top tokens and `num_explicit` ids, or of as many as are."""
        return LogprobArrays(
            chosen=self.chosen,
            ranks=self.ranks,
            top_ids=self.top_ids[..., :num_top],
            top_logprobs=self.top_logprobs[..., :num_top],
            explicit=self.explicit[..., :num_explicit],
            kept=self.kept,
        )

    def copy(self) -> LogprobArrays:
        """The same values in memory of their own."""
        return LogprobArrays(
            **{name: getattr(self, name).copy() for name in self.__struct_fields__}
        )

    def put(self, index: Index, values: LogprobArrays) -> None:
        """Write other arrays at some of the positions, as far as both are wide."""
        num_top = min(self.num_top, values.num_top)
        num_explicit = min(self.num_explicit, values.num_explicit)
        mine, theirs = self.narrow(num_top, num_explicit), values.narrow(num_top, num_explicit)
        mine.chosen[index], mine.ranks[index] = theirs.chosen, theirs.ranks
        mine.top_ids[index] = theirs.top_ids
        mine.top_logprobs[index] = theirs.top_logprobs
        mine.explicit[index], mine.kept[index] = theirs.explicit, theirs.kept
