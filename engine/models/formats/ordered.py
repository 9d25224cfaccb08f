"""Some inputs of a 4-bit weight whose groups are not of neighbouring inputs (GPTQ's act-order)."""

from __future__ import annotations

import torch

from engine.kernels.quantized.int4 import MIDDLE, RUN, Int4Groups, pack


def ordered_inputs(
    groups: Int4Groups, order: torch.Tensor, own: slice
) -> tuple[Int4Groups, torch.Tensor]:
    """Take some of a weight's inputs, each with the number, scale and zero point it has.

    They have some inputs of every group, more of one than of another. Each group's are filled up to
    whole runs, the smallest group that kernels know: by the group's zero point, which weighs
    nothing, times one of its inputs again, so that sums of a group hold no larger number than its
    own.

    Args:
        order: int64 [in], the input of each column. own: which inputs.

    Returns:
        Their columns in groups of `RUN`, at most as many as `order` has, and the input of each,
        int64, counted from the first of `own`.
    """
    columns = ((order >= own.start) & (order < own.stop)).nonzero().flatten()
    counts = torch.bincount(columns // groups.group)
    firsts = counts.cumsum(0) - counts
    fillers = columns[firsts.repeat_interleave(-counts % RUN)]
    taken = torch.cat([columns, fillers])
    place = torch.argsort(taken // groups.group, stable=True)
    taken, fills = taken[place], place >= len(columns)
    held = taken[::RUN] // groups.group
    zeros = None if groups.zeros is None else groups.zeros[:, held]
    nothing = MIDDLE if zeros is None else zeros.repeat_interleave(RUN, 1)
    numbers = torch.where(fills, nothing, groups.numbers()[:, taken])
    return pack(numbers, groups.scales[:, held], zeros, RUN), order[taken] - own.start
