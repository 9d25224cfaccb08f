"""Logprobs as JSON: OpenAI's completions shape with ids beside strings, and the shapes around it.

Columns are JSON text from the start, joined of fragments that are known for every id: a reply of
thousands of positions is made without an object for any of them. Equal float32 values are equal
text, so the chosen token's value and its entry in the top list cannot differ. `text_offset` is
noted by `server.text.detokenize`.
"""

from __future__ import annotations

from operator import add
from typing import Any

import numpy as np
import orjson

from engine.arrays import Float32Array, Int32Array, Int64Array, LogprobArrays
from server.generation.logprob_queue import LonePosition
from server.schema.fields import PackedDtype
from server.text.json_fragments import (
    PositionTexts,
    TokenFragments,
    dump,
    id_rows,
    objects_of,
    texts_of,
)
from server.text.packed import packed

Columns = dict[str, str]
"""Maps fields of the `logprobs` object to their items as JSON, with commas between and no
brackets."""

COLUMNS = (
    *("tokens", "text_offset", "token_ids", "bytes"),
    *("token_logprobs", "top_logprobs", "ranks", "top_token_ids"),
)
"""The fields of positions with values, in their order."""


def fragment(items: str) -> orjson.Fragment:
    """Make a list within a reply of JSON items with commas between."""
    return orjson.Fragment(f"[{items}]")


class TopLists:
    """The top lists of some positions: top tokens, the chosen token and the explicit ids of each.

    Attributes:
        token_ids, values: int32 and float32 [S], position after position; each id of a position
            is there once.
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
    """Writes the logprobs of one request as JSON.

    Args:
        as_ids: tokens are named "token_id:N".
    """

    def __init__(self, fragments: TokenFragments, *, as_ids: bool) -> None:
        self._fragments = fragments
        self._as_ids = as_ids

    def without_values(self, token_ids: Int32Array, offsets: list[int]) -> Columns:
        """Write positions that follow nothing, or whose values nobody asked for."""
        nulls = ",".join(["null"] * len(token_ids))
        missing = ("token_logprobs", "top_logprobs", "ranks", "top_token_ids")
        return self._tokens(token_ids, offsets) | dict.fromkeys(missing, nulls)

    def with_values(
        self,
        token_ids: Int32Array,
        offsets: list[int],
        arrays: LogprobArrays,
        num_top: int,
        explicit_ids: tuple[int, ...] = (),
        place: LonePosition | None = None,
    ) -> Columns:
        """Write positions with their values; `TopLists` says what top lists hold.

        Args:
            place: of a lone position, where it is among those of its step, if that is known.
        """
        if len(token_ids) == 1 and not explicit_ids:
            items = self.one_with_values(int(token_ids[0]), offsets[0], place or arrays, num_top)
            if items is not None:
                return dict(zip(COLUMNS, items, strict=True))
        shown = TopLists(token_ids, arrays, num_top, explicit_ids)
        keys = self._fragments.keys(
            shown.token_ids, shown.values, shown.starts, as_ids=self._as_ids
        )
        return self._tokens(token_ids, offsets) | {
            "token_logprobs": dump(arrays.chosen)[1:-1],
            "top_logprobs": objects_of(keys, [texts_of(shown.values)], shown.starts.tolist()),
            "ranks": dump(arrays.ranks)[1:-1],
            "top_token_ids": shown.id_rows,
        }

    def one_with_values(
        self,
        token_id: int,
        offset: int,
        values: LogprobArrays | LonePosition,
        num_top: int,
    ) -> tuple[str, ...] | None:
        """Write the `COLUMNS` of a single position as `with_values` would; None where names need
        its care.

        A stream has a chunk for each token, of which arrays of one row would take half the time.
        """
        fragments, found = self._fragments, None
        if isinstance(values, LonePosition):
            found = fragments.steps.position(values.arrays, values.i, num_top)
        if found is None:
            arrays = values.alone() if isinstance(values, LonePosition) else values
            texts = texts_of(np.concatenate((arrays.top_logprobs[0, :num_top], arrays.chosen)))
            top_ids: list[int] = arrays.top_ids[0, :num_top].tolist()
            found = PositionTexts(top_ids, texts[:-1], texts[-1], int(arrays.ranks[0]))
        ids, texts, chosen, rank = found
        if token_id not in ids:
            ids, texts = [*ids, token_id], [*texts, chosen]
        keys = fragments.plain_keys(ids, as_ids=self._as_ids)
        if keys is None:
            return None
        one = [token_id]
        return (
            *(*fragments.names(one, as_ids=self._as_ids), str(offset), str(token_id)),
            *(*fragments.byte_lists(one), chosen, f"{{{','.join(map(add, keys, texts))}}}"),
            *(str(rank), f"[{','.join(map(str, ids))}]"),
        )

    def _tokens(self, token_ids: Int32Array, offsets: list[int]) -> Columns:
        ids = token_ids.tolist()
        return {
            "tokens": ",".join(self._fragments.names(ids, as_ids=self._as_ids)),
            "text_offset": orjson.dumps(offsets).decode()[1:-1],
            "token_ids": dump(token_ids)[1:-1],
            "bytes": ",".join(self._fragments.byte_lists(ids)),
        }

    def prompt_entries(self, token_ids: Int32Array, arrays: LogprobArrays, num_top: int) -> str:
        """Write vLLM's `prompt_logprobs`: objects of id to value, rank and text, chosen first."""
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
    """Make lists of the positions of all parts, one part after another."""
    return {key: fragment(",".join(part[key] for part in parts if part[key])) for key in parts[0]}


def value_rows(values: Float32Array, as_packed: bool, dtype: PackedDtype = "float32") -> Any:
    """Write values float32 [positions] or [positions, ids] as they are in a reply."""
    return packed(values, dtype) if as_packed else orjson.Fragment(dump(values))


def packed_logprobs(
    token_ids: Int32Array,
    start: int,
    parts: list[LogprobArrays],
    num_top: int,
    offsets: Int32Array | None = None,
    dtype: PackedDtype = "float32",
) -> dict[str, Any]:
    """Make the logprobs object of arrays: ids of all positions, values from `start` on.

    The chosen token is in the top lists only where it belongs there.

    Args:
        parts: values, ranks and top lists of positions, one part after another.
        offsets: where each token begins in the text; None leaves them out.
    """
    no_values, no_ids = np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32)
    width = min([num_top, *(part.num_top for part in parts)])
    values = [part.top_logprobs[:, :width] for part in parts]
    ids = [part.top_ids[:, :width] for part in parts]
    texts = {} if offsets is None else {"text_offset": packed(offsets)}
    return {
        "start": start,
        "token_ids": packed(token_ids),
        **texts,
        "token_logprobs": packed(
            np.concatenate([no_values, *(part.chosen for part in parts)]), dtype
        ),
        "ranks": packed(np.concatenate([no_ids, *(part.ranks for part in parts)])),
        "top_token_ids": packed(np.concatenate([no_ids.reshape(0, width), *ids])),
        "top_logprobs": packed(np.concatenate([no_values.reshape(0, width), *values]), dtype),
    }
