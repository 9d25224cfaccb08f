"""Logprobs as JSON: OpenAI's completions shape with ids beside strings, and the shapes around it.

Columns are JSON text from the start, joined of pieces that are known for every id: a reply of
thousands of positions is made without an object for any of them. Equal float32 values are equal
text, so the chosen token's value and its entry in the top list cannot differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from engine.request import Float32Array, Int32Array, Int64Array, LogprobArrays
from server.text.json_fragments import TokenFragments, dump, id_rows, objects_of, texts_of
from server.text.packed import packed

Columns = dict[str, str]
"""A field of the reply to its items as JSON, with commas between and no brackets."""


def fragment(items: str) -> orjson.Fragment:
    """Items as a list within a reply."""
    return orjson.Fragment(f"[{items}]")


class Shown:
    """What top lists show of some positions: the top, the chosen token and the explicit ids.

    Attributes:
        token_ids, values: [S], position after position, each id of a position once.
        starts: where each position begins.
        id_rows: the ids as JSON lists.
    """

    def __init__(
        self,
        chosen_ids: Int32Array,
        arrays: LogprobArrays,
        num_top: int,
        explicit_ids: tuple[int, ...] = (),
    ) -> None:
        columns: dict[int, int] = {}
        for i, token_id in enumerate(explicit_ids):
            columns.setdefault(token_id, i)
        top_ids = arrays.top_ids[:, :num_top]
        k = top_ids.shape[1]
        ids = np.empty((len(chosen_ids), k + 1 + len(columns)), dtype=np.int32)
        ids[:, :k], ids[:, k] = top_ids, chosen_ids
        values = np.empty(ids.shape, dtype=np.float32)
        values[:, :k], values[:, k] = arrays.top_logprobs[:, :k], arrays.chosen
        if columns:
            ids[:, k + 1 :] = list(columns)
            values[:, k + 1 :] = arrays.explicit[:, list(columns.values())]
        # Top ids differ from each other, and so do explicit ones.
        known = ids[:, k:, None] == ids[:, None, : k + 1]
        known[:, 0, k] = False  # the chosen token is itself
        keep = np.ones(ids.shape, dtype=np.bool_)
        np.logical_not(known.any(axis=2), out=keep[:, k:])
        self.token_ids: Int32Array = ids[keep]
        self.values: Float32Array = values[keep]
        # The first of a row is always kept.
        self.starts: Int64Array = keep.reshape(-1).cumsum()[:: ids.shape[1]] - 1
        self.id_rows = id_rows(ids, keep)


class LogprobWriter:
    """Writes the logprobs of one request.

    Args:
        as_ids: name tokens "token_id:N".
    """

    def __init__(self, fragments: TokenFragments, *, as_ids: bool) -> None:
        self._fragments = fragments
        self._as_ids = as_ids

    def unscored(self, token_ids: Int32Array, offsets: list[int]) -> Columns:
        """Positions that follow nothing, or that nobody asked to be scored."""
        nulls = ",".join(["null"] * len(token_ids))
        missing = ("token_logprobs", "top_logprobs", "ranks", "top_token_ids")
        return self._tokens(token_ids, offsets) | dict.fromkeys(missing, nulls)

    def scored(
        self,
        token_ids: Int32Array,
        offsets: list[int],
        arrays: LogprobArrays,
        num_top: int,
        explicit_ids: tuple[int, ...] = (),
    ) -> Columns:
        """Positions with values; see `Shown` for the top lists."""
        shown = Shown(token_ids, arrays, num_top, explicit_ids)
        keys = self._fragments.keys(
            shown.token_ids, shown.values, shown.starts, as_ids=self._as_ids
        )
        return self._tokens(token_ids, offsets) | {
            "token_logprobs": dump(arrays.chosen)[1:-1],
            "top_logprobs": objects_of(keys, [texts_of(shown.values)], shown.starts.tolist()),
            "ranks": dump(arrays.ranks)[1:-1],
            "top_token_ids": shown.id_rows,
        }

    def _tokens(self, token_ids: Int32Array, offsets: list[int]) -> Columns:
        ids = token_ids.tolist()
        return {
            "tokens": ",".join(self._fragments.names(ids, as_ids=self._as_ids)),
            "text_offset": orjson.dumps(offsets).decode()[1:-1],
            "token_ids": dump(token_ids)[1:-1],
            "bytes": ",".join(self._fragments.byte_lists(ids)),
        }

    def prompt_entries(self, token_ids: Int32Array, arrays: LogprobArrays, num_top: int) -> str:
        """vLLM's `prompt_logprobs`: objects of id to value, rank and string, chosen first."""
        num_rows = len(token_ids)
        ranks = np.broadcast_to(np.arange(1, num_top + 1, dtype=np.int32), (num_rows, num_top))
        ids = np.concatenate([token_ids[:, None], arrays.top_ids[:, :num_top]], axis=1)
        values = np.concatenate([arrays.chosen[:, None], arrays.top_logprobs[:, :num_top]], axis=1)
        all_ranks = np.concatenate([arrays.ranks[:, None], ranks[:, : ids.shape[1] - 1]], axis=1)
        keep = ids != token_ids[:, None]
        keep[:, 0] = True
        shown_ids: list[int] = ids[keep].tolist()
        counts = keep.sum(axis=1)
        keys = [f'"{token_id}":{{"logprob":' for token_id in shown_ids]
        shown_ranks = [',"rank":' + rank for rank in texts_of(all_ranks[keep])]
        names = self._fragments.names(shown_ids, as_ids=self._as_ids)
        texts = [f',"decoded_token":{name}}}' for name in names]
        starts: list[int] = (np.cumsum(counts) - counts).tolist()
        return objects_of(keys, [texts_of(values[keep]), shown_ranks, texts], starts)


def join_columns(parts: list[Columns]) -> dict[str, orjson.Fragment]:
    """Positions of one part after those of the other, as lists."""
    return {
        key: fragment(",".join(part[key] for part in parts if part["token_ids"]))
        for key in parts[0]
    }


def value_rows(values: Float32Array, as_packed: bool) -> Any:
    """Values [positions, ids] as they stand in a reply."""
    return packed(values) if as_packed else orjson.Fragment(dump(values))


def packed_logprobs(
    token_ids: Int32Array,
    start: int,
    offsets: list[int],
    parts: list[LogprobArrays],
    num_top: int,
) -> dict[str, Any]:
    """The logprobs object as arrays: tokens and offsets of all positions, values from `start` on.

    The chosen token stands in the top lists only where it belongs there.
    """
    return {
        "start": start,
        "token_ids": packed(token_ids),
        "text_offset": packed(np.array(offsets, dtype=np.int32)),
        **packed_values(parts, num_top),
    }


def packed_values(parts: list[LogprobArrays], num_top: int) -> dict[str, Any]:
    """Values, ranks and top lists of positions, part after part, as arrays."""
    no_values, no_ids = np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32)
    width = min([num_top, *(part.top_ids.shape[1] for part in parts)])
    values = [part.top_logprobs[:, :width] for part in parts]
    ids = [part.top_ids[:, :width] for part in parts]
    return {
        "token_logprobs": packed(np.concatenate([no_values, *(part.chosen for part in parts)])),
        "ranks": packed(np.concatenate([no_ids, *(part.ranks for part in parts)])),
        "top_token_ids": packed(np.concatenate([no_ids.reshape(0, width), *ids])),
        "top_logprobs": packed(np.concatenate([no_values.reshape(0, width), *values])),
    }
