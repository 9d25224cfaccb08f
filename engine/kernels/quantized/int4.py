"""Weights of 4 bits, with a scale and a zero point for each group of a channel's inputs.

    w[n, k] = (q[n, k] - z[n, k // group]) * s[n, k // group],    q, z in 0 .. 15

Eight q share a 32-bit word. In each `SPAN` inputs of a channel, nibble j of word i is input
32 * j + i, so that the same nibble of neighbouring words is a run of inputs: a run's inputs lie
together in x, and are in one group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

SPAN = 256
"""Inputs of a channel that are packed together: 32 words."""
RUN = 32
GROUPS = (32, 64, 128, 256)
"""Group sizes that kernels know; larger ones are kept as several groups of 256."""
MIDDLE = 8
"""The zero point of a symmetric scheme."""


class Int4Groups(NamedTuple):
    """A weight [out, in] in 4 bits; `in` is padded to whole spans, whose scales are 0.

    All tensors are contiguous.

    Attributes:
        words: int32 [out, padded / 8].
        scales: [out, padded / group], float32, bfloat16 or float16.
        zeros: uint8 [out, padded / group]; None where all are `MIDDLE`.
        group: inputs under one scale, of `GROUPS`.
        in_features: inputs that are real.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group: int
    in_features: int

    def numbers(self) -> torch.Tensor:
        """The numbers q, uint8 [out, padded]."""
        shifts = torch.arange(0, 32, 4, device=self.words.device, dtype=torch.int32)
        words = self.words.view(len(self.words), -1, 1, RUN)
        return ((words >> shifts[:, None]) & 15).to(torch.uint8).flatten(1)

    def dequantized(self) -> torch.Tensor:
        """The weight's values as float32 [out, in_features]."""
        q = self.numbers().view(len(self.words), -1, self.group)
        zeros = MIDDLE if self.zeros is None else self.zeros[..., None].float()
        wide = (q.float() - zeros) * self.scales[..., None].float()
        return wide.flatten(1)[:, : self.in_features]


def pack(
    q: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, group: int
) -> Int4Groups:
    """Lay out a weight for the kernels.

    Args:
        q: uint8 [out, in], 0 to 15.
        scales: [out, in / group]. zeros: uint8 of the same shape.
        group: one of `GROUPS` or a multiple of the largest; `in` itself is a whole channel.
    """
    in_features = q.shape[1]
    kept = group if group in GROUPS else GROUPS[-1]
    padded = -(-in_features // SPAN) * SPAN
    q = F.pad(q, (0, padded - in_features)).view(len(q), -1, SPAN // RUN, RUN).to(torch.int32)
    words = torch.zeros(q[:, :, 0].shape, dtype=torch.int32, device=q.device)
    for nibble in range(SPAN // RUN):
        words |= q[:, :, nibble] << (4 * nibble)
    return Int4Groups(
        words.flatten(1),
        _spread(scales, group, kept, padded),
        None if zeros is None else _spread(zeros, group, kept, padded),
        kept,
        in_features,
    )


def _spread(values: torch.Tensor, group: int, kept: int, padded: int) -> torch.Tensor:
    """Repeat what belongs to `group` inputs for each `kept` of them, and pad."""
    if group != kept:
        values = values.repeat_interleave(-(-group // kept), dim=1)
    num_groups = padded // kept
    return F.pad(values, (0, max(num_groups - values.shape[1], 0)))[:, :num_groups].contiguous()
