"""The inputs and outputs of a draw and of a verification, the same for every path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling.rows import SamplingNeeds


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Which sampling row and position each of n logit rows belongs to."""

    rows: Tensor  # int32 [n] on the device, logit row -> sampling row
    positions: Tensor  # int64 [n] on the device, absolute position of the token to draw
    rows_np: npt.NDArray[np.int32]  # [n], the same as `rows`
    needs: SamplingNeeds
    # int32 [n] on the device, how many drafts are accepted in the history right before the token to
    # draw, not counted by the penalties yet; None where no row has drafts.
    depths: Tensor | None = None
    # int32 [n] on the device, slot in `SamplingRows.grammar_masks`, -1 where every id is allowed;
    # None where no row has a mask.
    mask_slots: Tensor | None = None

    def select(self, index: Tensor) -> SamplingBatch:
        """The logit rows `index` int64 [m] of a batch on the CPU."""
        return SamplingBatch(
            self.rows[index],
            self.positions[index],
            self.rows_np[index.numpy()],
            self.needs,
            None if self.depths is None else self.depths[index],
            None if self.mask_slots is None else self.mask_slots[index],
        )


UNUSABLE_LOGITS = 1
"""Code of a bad row whose raw logits hold NaN or +inf, or nothing finite."""

NOTHING_ALLOWED = 2
"""Code of a bad row whose raw logits are usable, but whose masks left no token."""


class LogprobsOutput(NamedTuple):
    """The logprobs reported at N positions: six columns, one row a position."""

    chosen: Tensor  # float32 [N], the chosen token's value
    ranks: Tensor  # int32 [N], the chosen token's rank, 1 for the highest
    top_ids: Tensor  # int32 [N, K], best first
    top_logprobs: Tensor  # float32 [N, K]
    explicit: Tensor  # float32 [N, J], in the order of the ids asked for
    kept: Tensor  # float32 [N], see `paths.kept_logprobs`; 0 in rows that do not ask for it

    @classmethod
    def concat(cls, parts: Sequence[LogprobsOutput]) -> LogprobsOutput:
        """The positions of all parts, one after the other; K and J are the same in each."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def at(self, positions: Tensor | slice) -> LogprobsOutput:
        """The positions at an index: a slice gives views, a tensor copies."""
        return LogprobsOutput(*(column[positions] for column in self))

    def zeros(self, num_positions: int) -> LogprobsOutput:
        """Make zeroed positions with the K, J, dtypes and device of these."""
        return LogprobsOutput(
            *(column.new_zeros((num_positions, *column.shape[1:])) for column in self)
        )

    def put(self, positions: Tensor, part: LogprobsOutput) -> None:
        """Overwrite the positions at `positions` int64 [m] by the m of `part`, in place."""
        for column, values in zip(self, part, strict=True):
            column[positions] = values


class ListedLogprobs(NamedTuple):
    """The logprobs of N rows' listed ids, and of what is not listed.

    Attributes:
        values: float32 [N, J], those of the ids; undefined at padding.
        others: float32 [N], that of all other ids together; -inf where nothing is left.
        best_ids: int32 [N], the first of all other ids in the sampler's order.
        best: float32 [N], its logprob.
        log_sums: float64 [N], the log-sum-exp of the logits: a logprob and it are a logit.
    """

    values: Tensor
    others: Tensor
    best_ids: Tensor
    best: Tensor
    log_sums: Tensor

    @classmethod
    def concat(cls, parts: Sequence[ListedLogprobs], like: Tensor) -> ListedLogprobs:
        """The rows of all parts, one after the other; J is the same in each.

        Args:
            like: int32 [N, J], the ids; of no rows where there is no part.
        """
        if len(parts) == 1:
            return parts[0]
        if parts:
            return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        none = like.new_empty(0)
        return cls(like.float(), none.float(), none, none.float(), none.double())


class SamplerOutput(NamedTuple):
    """The tokens drawn for n logit rows, on the device; penalties have counted them."""

    token_ids: Tensor  # int32 [n], 0 where bad
    bad: Tensor  # uint8 [n], 0 where good, else `UNUSABLE_LOGITS` or `NOTHING_ALLOWED`
    logprobs: LogprobsOutput | None  # None where no row asks for them


class Drafts(NamedTuple):
    """The drafts to verify beside a batch's n logit rows, on the device, for R rows that draw.

    A row with d drafts owns 1 + d logit rows, which follow one another: that of depth j verifies
    its draft j, or draws where j = d.
    """

    starts: Tensor  # int64 [R], the logit row of depth 0
    num_drafts: Tensor  # int32 [R], d, at most k
    token_ids: Tensor  # int32 [R, k]; any id outside the vocabulary (-1) is no draft
    room: Tensor  # int32 [R], most tokens that may be kept, at least 1
    # float32 [slots, k or more, vocab_size], q of the draft of each depth in its sampling row's
    # slot, after temperature and hard masks; None where drafts are one-hot.
    logits: Tensor | None = None


class Verification(NamedTuple):
    """The tokens that verification leaves, on the device; penalties have counted them."""

    token_ids: Tensor  # int32 [R, 1 + k], 0 beyond `num_new`
    num_new: Tensor  # int32 [R], how many are kept: 1 .. 1 + k, or 0 .. k where bad
    num_accepted: Tensor  # int32 [R], how many of those are drafts
    bad: Tensor  # uint8 [R], as in `SamplerOutput`, of the logits of the token after those
    logprobs: LogprobsOutput | None  # of the n logit rows; undefined where no token was kept
