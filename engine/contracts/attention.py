"""The attention contract between the runner, the models and the attention backends.

A step's lengths and block tables live on the device; the host knows only upper bounds of
lengths, because a step in flight may not have produced them yet (after speculation the host
cannot know how many tokens were accepted). How many query tokens each row brings is the
scheduler's decision, so the host knows that exactly. No backend may synchronise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.contracts.heads import Heads, Rotation
from engine.contracts.shared_blocks import Sharing


@dataclass(frozen=True)
class AttentionSpec:
    """Describes the attention of one layer.

    Attributes:
        num_q_heads, num_kv_heads: grouped-query attention when they differ.
        head_dim: of queries, keys and values.
        scale: multiplies q·k.
        sliding_window: a query at position i sees keys j with i - window < j <= i; None sees all.
        softcap: c in c * tanh(score / c), before the mask; None for none.
        alibi_slopes: float32 [num_q_heads]; slope * (j - i) is added (Press et al. 2022).
        sinks: float32 [num_q_heads]; one extra score in the softmax with no value (attention sink).
        is_causal: a query sees no key after its own. Else it sees all keys of its row from the
            beginning of its window on; such layers attend in rows that decode alone.
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    is_causal: bool = True


@dataclass(frozen=True)
class AttentionInputs:
    """One step's rows and tokens, T tokens in R rows; padding rows bring no query tokens.

    Attributes:
        query_starts: int32 [R + 1], device; row r owns tokens query_starts[r]:query_starts[r + 1].
        query_starts_np: the same on the host.
        seq_lens: int32 [R], device; keys a row's last query token sees, itself included. Where a
            row has fewer keys than query tokens, the first of these get finite numbers of no use.
        block_tables: int32 [R, max_blocks], device; unused entries are the null block.
        slots: int64 [T], device; block * block_size + offset where a token's key and value go.
        seq_lens_np: int32 [R], host; upper bounds of seq_lens, exact for rows that prefill.
        max_query_len: largest number of query tokens of a row.
        decode_len: query tokens of a decoding row, 1 + drafts to be verified. The leading rows
            that bring so many decode, the others prefill; 0 for none.
        sharing: rows that begin with the same blocks, so that a backend may read these once for all
            of them; it may also pass over it. None decodes.
    """

    query_starts: torch.Tensor
    query_starts_np: npt.NDArray[np.int32]
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slots: torch.Tensor
    seq_lens_np: npt.NDArray[np.int32]
    max_query_len: int
    decode_len: int = 1
    sharing: Sharing | None = None

    @property
    def num_decode_rows(self) -> int:
        """The number of leading rows that bring `decode_len` tokens."""
        query_lens = np.diff(self.query_starts_np)
        return int(np.argmin(np.append(query_lens == self.decode_len, False)))

    @property
    def max_seq_len(self) -> int:
        """Upper bound of all seq_lens."""
        return int(self.seq_lens_np.max())

    @classmethod
    def of_row(cls, blocks: torch.Tensor, block_size: int, start: int, end: int) -> AttentionInputs:
        """The inputs of one row's tokens start:end, whose keys lie in `blocks` int32, in order."""
        device, count = blocks.device, end - start
        starts_np = np.array([0, count], dtype=np.int32)
        positions = torch.arange(start, end, device=device)
        slots = blocks[positions // block_size].long() * block_size + positions % block_size
        return cls(
            query_starts=torch.from_numpy(starts_np).to(device),
            query_starts_np=starts_np,
            seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
            block_tables=blocks[None],
            slots=slots,
            seq_lens_np=np.array([end], dtype=np.int32),
            max_query_len=count,
        )

    def after(self, count: int) -> AttentionInputs:
        """The inputs of the rows after the first `count`, whose tokens are left out."""
        first = int(self.query_starts_np[count])
        return AttentionInputs(
            query_starts=self.query_starts[count:] - first,
            query_starts_np=self.query_starts_np[count:] - first,
            seq_lens=self.seq_lens[count:],
            block_tables=self.block_tables[count:],
            slots=self.slots[first:],
            seq_lens_np=self.seq_lens_np[count:],
            max_query_len=self.max_query_len,
            decode_len=self.decode_len,
            sharing=self.sharing and self.sharing.after(count),
        )


class LayerAttention(Protocol):
    """The part of a backend that a model's layers call: store keys and values, then attend."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k, v in the layer's cells, then attend causally.

        Args:
            layer: index into the specs the backend was built with.
            q: [T, num_q_heads, head_dim]. k, v: [T, num_kv_heads, head_dim].

        Returns:
            [T, num_q_heads, head_dim] in q's dtype.
        """
        ...

    def attend_product(
        self, layer: int, qkv: torch.Tensor, heads: Heads, rotation: Rotation
    ) -> torch.Tensor:
        """Normalize and rotate the heads of a fused QKV product, store keys and values, attend.

        Args:
            qkv: [T, heads.width * head_dim], contiguous.

        Returns:
            [T, num_q_heads, head_dim] in its dtype.
        """
        ...


class AttentionBackend(LayerAttention, Protocol):
    """Attention over the paged cache for one step after another."""

    def begin(self, inputs: AttentionInputs) -> None:
        """Take the step's inputs; called once before the layers run."""
        ...

    def begin_storing(self, slots: torch.Tensor) -> None:
        """Take the slots int64 [T] of tokens that `store_product` stores, in place of `begin`."""
        ...

    def store_product(self, layer: int, kv: torch.Tensor, heads: Heads, rotation: Rotation) -> None:
        """Normalize and rotate the keys of a product without queries, store keys and values.

        Args:
            kv: [T, 2 * num_kv * head_dim], contiguous.
            heads: without queries.
        """
        ...
