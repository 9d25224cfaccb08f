"""Logprobs of a chat as JSON: OpenAI's entries for the content, and every token with its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import orjson

from engine.arrays import Int32Array, LogprobArrays
from server.generation.logprobs import Columns
from server.text.json_fragments import TokenFragments, texts_of

CONTENT, MARKUP = "content", "markup"
"""Parts of a reply that a token may belong to, where nothing else is looked for."""
NO_CUTS: Mapping[int, bytes] = {}


class ChatLogprobWriter:
    """Writes the logprobs of one chat request as JSON.

    Args:
        as_ids: tokens are named "token_id:N".
    """

    def __init__(self, fragments: TokenFragments, *, as_ids: bool) -> None:
        self._fragments = fragments
        self._as_ids = as_ids

    def columns(
        self,
        token_ids: Int32Array,
        parts: Sequence[str],
        arrays: LogprobArrays,
        num_top: int,
        explicit_ids: tuple[int, ...],
        cuts: Mapping[int, bytes] = NO_CUTS,
    ) -> Columns:
        """Write positions: `content` has those of the message's text, `tokens` has all.

        Args:
            token_ids: int32 [n]. parts: of each, what it belongs to.
            num_top: top tokens of an entry; where there are explicit ids, the token itself and
                these follow them, each once.
            cuts: by index, the bytes in the content of tokens that lie there with some only.
        """
        entries = self._entries(token_ids, arrays, num_top, explicit_ids, cuts)
        shown = (texts_of(token_ids), texts_of(arrays.chosen), texts_of(arrays.ranks), parts)
        return {
            "content": ",".join(
                entry
                for i, (entry, part) in enumerate(zip(entries, parts, strict=True))
                if part == CONTENT or i in cuts
            ),
            "tokens": ",".join(
                f'{{"token_id":{token_id},"logprob":{value},"rank":{rank},"part":"{part}"}}'
                for token_id, value, rank, part in zip(*shown, strict=True)
            ),
        }

    def _entries(
        self,
        token_ids: Int32Array,
        arrays: LogprobArrays,
        num_top: int,
        explicit_ids: tuple[int, ...],
        cuts: Mapping[int, bytes],
    ) -> list[str]:
        tops = self._top_lists(token_ids, arrays, num_top, explicit_ids)
        chosen = self._named(token_ids, texts_of(arrays.chosen), cuts)
        return [f'{{{own},"top_logprobs":[{top}]}}' for own, top in zip(chosen, tops, strict=True)]

    def _top_lists(
        self,
        token_ids: Int32Array,
        arrays: LogprobArrays,
        num_top: int,
        explicit_ids: tuple[int, ...],
    ) -> list[str]:
        """Each position's top tokens, then its own and the explicit ids not among them."""
        columns: dict[int, int] = {}
        for i, token_id in enumerate(explicit_ids):
            columns.setdefault(token_id, i)
        top_ids = arrays.top_ids[:, :num_top]
        num_rows, k = top_ids.shape
        explicit = np.tile(np.array(list(columns), dtype=np.int32), (num_rows, 1))
        own_ids, own = token_ids[:, None], arrays.chosen[:, None]
        if not columns:
            own_ids, own = own_ids[:, :0], own[:, :0]
        ids = np.concatenate([top_ids, own_ids, explicit], axis=1)
        values = [arrays.top_logprobs[:, :k], own, arrays.explicit[:, list(columns.values())]]
        keep = np.ones(ids.shape, dtype=np.bool_)
        keep[:, k:] = (ids[:, k:, None] != top_ids[:, None, :]).all(axis=2)
        keep[:, k + own.shape[1] :] &= (explicit[:, :, None] != own_ids[:, None, :]).all(axis=2)
        shown = self._named(ids[keep], texts_of(np.concatenate(values, axis=1)[keep]))
        ends = np.cumsum(keep.sum(axis=1)).tolist()
        starts = [0, *ends[:-1]]
        return [
            ",".join(f"{{{entry}}}" for entry in shown[start:end])
            for start, end in zip(starts, ends, strict=True)
        ]

    def _named(
        self, token_ids: Int32Array, values: list[str], cuts: Mapping[int, bytes] = NO_CUTS
    ) -> list[str]:
        """Fields of an entry: name, value, bytes and id."""
        ids = token_ids.tolist()
        names = self._fragments.names(ids, as_ids=self._as_ids)
        raw = self._fragments.byte_lists(ids)
        for i, own in cuts.items():
            raw[i] = orjson.dumps(list(own)).decode()
        return [
            f'"token":{name},"logprob":{value},"bytes":{chunk},"token_id":{token_id}'
            for name, value, chunk, token_id in zip(names, values, raw, ids, strict=True)
        ]
