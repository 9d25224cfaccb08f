"""The columns of a batch and of its logprobs: rows chosen, joined and overwritten."""

from __future__ import annotations

import numpy as np
import torch

from sampling.batch import LogprobsOutput, SamplingBatch
from sampling.rows import SamplingNeeds


def make_logprobs(num_positions: int, first: int = 0) -> LogprobsOutput:
    """K = 2 and J = 1; every number tells its position and column."""
    position = torch.arange(first, first + num_positions)
    return LogprobsOutput(
        chosen=position / 8,
        ranks=position.int(),
        top_ids=torch.stack((position, position + 100), dim=1).int(),
        top_logprobs=torch.stack((position / 4, position / 2), dim=1),
        explicit=(position + 0.5)[:, None],
        kept=-position / 16,
    )


def same(mine: LogprobsOutput, theirs: LogprobsOutput) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_parts_are_joined_in_their_order() -> None:
    parts = [make_logprobs(3), make_logprobs(1, first=3), make_logprobs(2, first=4)]
    assert same(LogprobsOutput.concat(parts), make_logprobs(6))
    assert not same(LogprobsOutput.concat(parts[::-1]), make_logprobs(6))


def test_positions_are_chosen_by_slice_and_by_index() -> None:
    whole = make_logprobs(6)
    assert same(whole.at(slice(2, 5)), make_logprobs(3, first=2))
    assert whole.at(slice(2, 5)).explicit.data_ptr() == whole.explicit[2:].data_ptr()
    chosen = whole.at(torch.tensor([5, 0]))
    assert same(chosen, LogprobsOutput.concat([make_logprobs(1, first=5), make_logprobs(1)]))
    assert same(whole.at(torch.arange(6) < 4), make_logprobs(4))


def test_positions_are_overwritten_among_zeros() -> None:
    part = make_logprobs(2, first=7)
    whole = part.zeros(4)
    assert [column.dtype for column in whole] == [column.dtype for column in part]
    assert not any(column.any() for column in whole)
    whole.put(torch.tensor([3, 1]), part)
    assert same(whole.at(torch.tensor([3, 1])), part)
    assert same(whole.at(slice(0, 3, 2)), part.zeros(2))


def test_a_batch_of_some_logit_rows() -> None:
    rows_np = np.array([4, 2, 2, 9], dtype=np.int32)
    needs = SamplingNeeds(1, greedy=False, num_top=0, num_explicit=0)
    depths = torch.tensor([0, 0, 1, 0], dtype=torch.int32)
    slots = torch.tensor([-1, 3, 0, 7], dtype=torch.int32)
    batch = SamplingBatch(
        torch.from_numpy(rows_np), torch.tensor([10, 20, 21, 30]), rows_np, needs, depths, slots
    )
    some = batch.select(torch.tensor([3, 2]))
    assert some.rows.tolist() == some.rows_np.tolist() == [9, 2]
    assert some.positions.tolist() == [30, 21]
    assert some.depths is not None
    assert some.depths.tolist() == [0, 1]
    assert some.mask_slots is not None
    assert some.mask_slots.tolist() == [7, 0]
    assert some.needs is needs
    without = SamplingBatch(batch.rows, batch.positions, rows_np, needs)
    assert without.select(torch.tensor([0])).depths is None
    assert without.select(torch.tensor([0])).mask_slots is None
