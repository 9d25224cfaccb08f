"""The contract between the runner and a drafter.

Every decoding row of a step brings 1 + d query tokens: its last token, then d of its drafts, k at
most. The target's step verifies them, enters a + 1 new tokens (a accepted, one recovered or bonus)
and counts a + 1 tokens as computed. The drafter then runs once, on the same stream and in the same
graph, and leaves drafts for each row that drew. Nothing of it is known to the host but how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.named_weights import NamedWeights
from sampling.batch import SamplingBatch


@dataclass(frozen=True)
class VerifiedStep:
    """A step of the target as its drafter sees it: R rows, T tokens; L rows drew.

    Attributes:
        num_drafts: d, that each of these rows shall get, 1 to k. The first drafts of a row are the
            same whatever their number.
        rows: int64 [R].
        input_ids: int32 [T]. positions: int64 [T]. The query tokens the target computed.
        next_ids: int32 [T], the token that follows each in its row: the next prompt token or the
            token entered after it. After a row's last kept token they are undefined, but
            below vocab_size.
        hidden: [T, hidden_size], the target's hidden states after its final norm.
        features: [T, F], outputs of the target's layers `Drafter.feature_layers` side by side;
            None where it names none.
        attention: lengths, tables and slots of the target's step. The drafter's cache has the same
            blocks: slot s of a token is its slot in every layer of every cache. Tables are as wide
            as `block_tables`; every row brings at least one token.
        draw_rows: int64 [L], index into `rows` of the rows that drew and are drafted for.
        last: int64 [L], index into the T tokens of the last one kept in each of these rows.
            The row's newest token, which is not among the T, has position positions[last] + 1.
        sampling: L rows; positions are those of the next step's first draft, positions[last] + 2.
        limits: int64 [L], the first position that no draft may have. A draft there or beyond is
            never accepted, and its key and value must go to the null block.
        block_tables: int32 [L, max_blocks] of the rows that drew; blocks are granted for k + 1
            positions past the newest token, as far as `limits`.
    """

    num_drafts: int
    rows: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    next_ids: torch.Tensor
    hidden: torch.Tensor
    features: torch.Tensor | None
    attention: AttentionInputs
    draw_rows: torch.Tensor
    last: torch.Tensor
    sampling: SamplingBatch
    limits: torch.Tensor
    block_tables: torch.Tensor


class Drafter(Protocol):
    """Proposes the drafts that the next step verifies.

    Attributes:
        num_tokens: k.
        feature_layers: layers of the target whose outputs it reads, in order; usually none.
        draft_logits: float32 [max_rows + 1, k, width], one slot a row and draft step, after
            temperature and hard masks (-inf outside them), of the ids that the rank verifies; None
            where drafts are one-hot.
        attention_specs: of its own layers, for the size of their cache; none for n-grams.
    """

    num_tokens: int
    feature_layers: tuple[int, ...]
    draft_logits: torch.Tensor | None
    attention_specs: Sequence[AttentionSpec]

    def named_weights(self) -> NamedWeights:
        """Where its own weights are held, by their names in its checkpoint; none for n-grams."""
        ...

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        """Replace its KV cache by one of `num_blocks` blocks of zeros; returns the tensors.

        Called before the first `propose` and never once a graph holds it. A block takes
        `KVCache.bytes_per_block(attention_specs, block_size, dtype of the target)`.
        """
        ...

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        """Propose drafts int32 [L, d]; -1 means no draft, and verification always refuses it.

        After a -1 a row has no drafts.

        Reads nothing on the host beyond shapes, so that a graph can hold it on CUDA. Draft logits
        of the rows are written in the same call.
        """
        ...
