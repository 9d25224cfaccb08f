"""Logprobs as JSON: OpenAI's completions shape with ids beside strings, and the shapes around it.

Every value of a request goes through `json_rows`, so that equal float32 values are equal text:
the chosen token's value and its entry in the top list cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from engine.request import Float32Array, LogprobArrays
from server.errors import ApiError
from server.tokenizer import Tokenizer

MINUS_INFINITY = -9999.0

Columns = dict[str, list[Any]]


def json_rows(values: Float32Array) -> list[Any]:
    """Nested lists of the shortest decimals that round to each float32; -inf is -9999.0."""
    finite = np.isfinite(values)
    if not finite.all():
        if np.isnan(values).any() or np.isposinf(values).any():
            raise ApiError(500, "the logprobs hold NaN or +Inf", code="nan_logits")
        values = np.where(finite, values, np.float32(MINUS_INFINITY))
    raw = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    rows: list[Any] = orjson.loads(raw)
    return rows


class TokenNames:
    """How tokens are named in a reply."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._texts = tokenizer.texts
        self._raw = tokenizer.raw
        self._as_ids = as_ids

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Strings of ids."""
        if self._as_ids:
            return [f"token_id:{token_id}" for token_id in token_ids]
        texts = self._texts
        return [texts[token_id] for token_id in token_ids]

    def byte_lists(self, token_ids: Sequence[int]) -> list[list[int]]:
        """Bytes of ids."""
        raw = self._raw
        return [list(raw[token_id]) for token_id in token_ids]

    def entry(self, token_ids: Sequence[int], values: Sequence[float]) -> dict[str, float]:
        """Name to value, in order; of ids with one name the best has it, others go by id."""
        names = self.names(token_ids)
        entry = dict(zip(names, values, strict=True))
        if len(entry) == len(names):
            return entry
        taken: set[str] = set()
        for i in sorted(range(len(names)), key=lambda i: -values[i]):
            if names[i] in taken:
                names[i] = f"token_id:{token_ids[i]}"
            taken.add(names[i])
        return dict(zip(names, values, strict=True))


def unscored_columns(names: TokenNames, token_ids: list[int], offsets: list[int]) -> Columns:
    """Positions that follow nothing, or that nobody asked to be scored."""
    nulls = [None] * len(token_ids)
    return {
        "tokens": names.names(token_ids),
        "token_logprobs": nulls,
        "top_logprobs": nulls,
        "text_offset": offsets,
        "ranks": nulls,
        "token_ids": token_ids,
        "top_token_ids": nulls,
        "bytes": names.byte_lists(token_ids),
    }


def scored_columns(
    names: TokenNames,
    token_ids: list[int],
    offsets: list[int],
    arrays: LogprobArrays,
    num_top: int,
    explicit_ids: tuple[int, ...],
) -> Columns:
    """Positions with values; the top list holds the top, the chosen token and the explicit ids."""
    values = json_rows(
        np.concatenate(
            [
                arrays.chosen[:, None],
                arrays.top_logprobs[:, :num_top],
                arrays.explicit[:, : len(explicit_ids)],
            ],
            axis=1,
        )
    )
    top_ids: list[list[int]] = arrays.top_ids[:, :num_top].tolist()
    top_logprobs = []
    for token_id, ids, row in zip(token_ids, top_ids, values, strict=True):
        shown = row[1 : 1 + num_top]
        _append_missing(ids, shown, (token_id, *explicit_ids), (row[0], *row[1 + num_top :]))
        top_logprobs.append(names.entry(ids, shown))
    return {
        "tokens": names.names(token_ids),
        "token_logprobs": [row[0] for row in values],
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
        "ranks": arrays.ranks.tolist(),
        "token_ids": token_ids,
        "top_token_ids": top_ids,
        "bytes": names.byte_lists(token_ids),
    }


def _append_missing(
    ids: list[int], values: list[float], more_ids: Sequence[int], more_values: Sequence[float]
) -> None:
    for token_id, value in zip(more_ids, more_values, strict=True):
        if token_id not in ids:
            ids.append(token_id)
            values.append(value)


def join_columns(parts: list[Columns]) -> Columns:
    """Positions of one part after those of the other."""
    if len(parts) == 1:
        return parts[0]
    return {key: [item for part in parts for item in part[key]] for key in parts[0]}


def prompt_entries(
    names: TokenNames, token_ids: list[int], arrays: LogprobArrays, num_top: int
) -> list[dict[str, Any]]:
    """vLLM's `prompt_logprobs`: per position, id to value, rank and string."""
    values = json_rows(
        np.concatenate([arrays.chosen[:, None], arrays.top_logprobs[:, :num_top]], axis=1)
    )
    ranks: list[int] = arrays.ranks.tolist()
    entries = []
    for position, ids in enumerate(arrays.top_ids[:, :num_top].tolist()):
        chosen, row = token_ids[position], values[position]
        ranked = [(chosen, row[0], ranks[position])]
        ranked += [(t, row[1 + i], 1 + i) for i, t in enumerate(ids) if t != chosen]
        texts = names.names([token_id for token_id, _, _ in ranked])
        entries.append(
            {
                str(token_id): {"logprob": value, "rank": rank, "decoded_token": text}
                for (token_id, value, rank), text in zip(ranked, texts, strict=True)
            }
        )
    return entries
