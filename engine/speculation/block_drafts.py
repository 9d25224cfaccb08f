"""Drafts from the hidden states of a block's places, in one of three ways.

    DFlash    each place by itself: the LM head's logits U_i
    DFlash2   from left to right among a place's top K candidates b, after the last draft a:
              U_i(b) + <A[a] * W h_i, B[b]>; -inf for all others
    DSpark    from left to right: U_i + w2 w1[a]

Letters in shapes: k drafts, L rows, H hidden size, K candidates, r rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.linear import Linear
from sampling.vocab_shard import VocabShard

MOST_ROWS = 1024
"""Rows of logits made at once: enough that the LM head is read few times, and no more memory."""

Draw = Callable[[torch.Tensor, int], torch.Tensor]
"""Draws the drafts int32 [L] of a depth from its logits [L, width]."""


class BlockDrafts(Protocol):
    """Draws the drafts of a block."""

    def __call__(
        self, hidden: torch.Tensor, newest: torch.Tensor, draw: Draw
    ) -> list[torch.Tensor]:
        """Draw the drafts int32 [L] of each depth.

        Args:
            hidden: [k, L, H], of the places in order, after the final norm.
            newest: int32 [L], the tokens before the first drafts.
        """
        ...


@dataclass(frozen=True)
class OutputLogits:
    """The LM head's logits, times a factor, capped.

    Attributes:
        softcap: c in c * tanh(logit / c); None for none.
    """

    lm_head: Linear
    scale: float
    softcap: float | None

    def __call__(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """The float32 logits [L, width] of each depth of hidden states [k, L, H]."""
        num_rows = hidden.shape[1]
        logits: list[torch.Tensor] = []
        for some in torch.split(hidden, max(1, MOST_ROWS // num_rows)):
            made = self._scaled(self.lm_head(some.flatten(0, 1)))
            logits += made.view(len(some), num_rows, -1).unbind()
        return logits

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


@dataclass(frozen=True)
class IndependentDrafts:
    """The `BlockDrafts` of DFlash."""

    logits: OutputLogits

    def __call__(
        self, hidden: torch.Tensor, newest: torch.Tensor, draw: Draw
    ) -> list[torch.Tensor]:
        return [draw(logits, depth) for depth, logits in enumerate(self.logits(hidden))]


@dataclass(frozen=True)
class MarkovDrafts:
    """The `BlockDrafts` of DSpark.

    Attributes:
        embedding: w1 [vocab_size, r]. transitions: w2, of the columns of the logits.
    """

    logits: OutputLogits
    embedding: torch.Tensor
    transitions: Linear

    def __call__(
        self, hidden: torch.Tensor, newest: torch.Tensor, draw: Draw
    ) -> list[torch.Tensor]:
        drafts, last = [], newest
        for depth, logits in enumerate(self.logits(hidden)):
            steps = self.transitions(self.embedding[last.long()])
            last = draw(logits[:, : steps.shape[1]] + steps, depth)  # the rest is padding
            drafts.append(last)
        return drafts


@dataclass(frozen=True)
class SelectedDrafts:
    """The `BlockDrafts` of DFlash2.

    Attributes:
        predecessors: A [vocab_size, r]. successors: B [vocab_size, r].
        projection: W, to r.
        top_k: K. shard: the ids of the logits.
    """

    logits: OutputLogits
    predecessors: torch.Tensor
    successors: torch.Tensor
    projection: Linear
    top_k: int
    shard: VocabShard

    def __call__(
        self, hidden: torch.Tensor, newest: torch.Tensor, draw: Draw
    ) -> list[torch.Tensor]:
        factors = self.projection(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1).float()
        drafts, last = [], newest
        for depth, logits in enumerate(self.logits(hidden)):
            values, ids = self._candidates(logits)
            weights = self.predecessors[last.long()].float() * factors[depth]
            edges = torch.einsum("lr,lkr->lk", weights, self.successors[ids].float())
            last = draw(self._among(values + edges, ids), depth)
            drafts.append(last)
        return drafts

    def _candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The K highest logits of each row, of all ranks, and their ids: [L, K] each."""
        shard = self.shard
        values, columns = logits[:, : shard.width].topk(min(self.top_k, shard.width), dim=1)
        ids = columns + shard.first
        if shard.is_whole:
            return values, ids
        wide = min(self.top_k, max(shard.widths)) - values.shape[1]
        padded = torch.nn.functional.pad(values, (0, wide), value=-torch.inf)
        all_values = shard.exchange.all_gather(padded).transpose(0, 1).flatten(1)
        all_ids = torch.nn.functional.pad(ids, (0, wide))
        all_ids = shard.exchange.all_gather(all_ids).transpose(0, 1).flatten(1)
        values, places = all_values.topk(min(self.top_k, all_values.shape[1]), dim=1)
        return values, all_ids.gather(1, places)

    def _among(self, scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits [L, width of the shard] that are the scores [L, K] at ids, else -inf."""
        columns, held = self.shard.columns(ids)
        logits = scores.new_full((len(scores), self.shard.width), -torch.inf)
        scores = scores.masked_fill(~held, -torch.inf)
        return logits.scatter_reduce_(1, columns, scores, "amax")  # of others' ids -inf
