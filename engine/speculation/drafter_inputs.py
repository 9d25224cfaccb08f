"""Makes the inputs of a drafter's own forwards on the device, from the target's step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from engine.contracts.attention import AttentionInputs
from engine.contracts.drafter import VerifiedStep
from engine.memory.blocks import NULL_BLOCK


class SingleSteps(NamedTuple):
    """The positions int64 [n, L] and inputs of n forwards of L rows with one token each."""

    positions: torch.Tensor
    attention: list[AttentionInputs]


def single_steps(step: VerifiedStep, start: int, count: int, block_size: int) -> SingleSteps:
    """Make inputs of `count` forwards: the first at positions[last] + start, each one further.

    A token at its row's limit or beyond is written to the null block and sees keys below the limit.
    """
    num_rows, device = len(step.last), step.last.device
    first = step.positions[step.last] + start
    positions = first + torch.arange(count, device=device)[:, None]  # [count, L]
    slots = slots_at(
        step.block_tables, positions.T, step.limits[:, None], block_size
    ).T.contiguous()
    seq_lens = torch.minimum(positions + 1, step.limits).to(torch.int32)
    starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
    starts_np = np.arange(num_rows + 1, dtype=np.int32)
    bounds_np = step.attention.seq_lens_np
    if len(bounds_np) != num_rows:  # which of the rows drew is known on the device alone
        bounds_np = np.full(num_rows, step.attention.max_seq_len, dtype=np.int32)
    inputs = [
        AttentionInputs(
            query_starts=starts,
            query_starts_np=starts_np,
            seq_lens=seq_lens[i],
            block_tables=step.block_tables,
            slots=slots[i],
            seq_lens_np=bounds_np + (start + i),
            max_query_len=1,
        )
        for i in range(count)
    ]
    return SingleSteps(positions, inputs)


def slots_at(
    tables: torch.Tensor, positions: torch.Tensor, limits: torch.Tensor, block_size: int
) -> torch.Tensor:
    """The slots int64 [L, n] of positions int64 [L, n], by tables [L, max_blocks].

    Positions at `limits` [L, 1] or beyond have slots of the null block.
    """
    columns = positions.div(block_size, rounding_mode="floor").clamp(max=tables.shape[1] - 1)
    blocks = tables.gather(1, columns).masked_fill(positions >= limits, NULL_BLOCK)
    return blocks.to(torch.int64) * block_size + positions % block_size
