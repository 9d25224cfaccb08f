"""Products with adapters in slots, and what they are in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from engine.kernels.lora.groups import TokenGroups, group_tokens
from engine.kernels.lora.shrink import InputNorm
from engine.kernels.lora.stacks import Stacks

EPS = 1e-6


class Case(NamedTuple):
    """Inputs of `add_delta`, and what it is to leave in `out` as float64.

    Attributes:
        before: what is in `out`, on the host.
    """

    out: torch.Tensor
    before: torch.Tensor
    x: torch.Tensor
    stacks: Stacks
    norm: InputNorm | None
    slots: np.ndarray
    wanted: torch.Tensor

    @property
    def groups(self) -> TokenGroups:
        return groups_of(self.slots, str(self.x.device))


def groups_of(slots: np.ndarray, device: str, count: int | None = None) -> TokenGroups:
    arrays = (*group_tokens(slots, count), slots)
    tokens, tiles, by_token = (torch.from_numpy(each).to(device) for each in arrays)
    return TokenGroups(tokens, tiles, by_token)


def make(
    slots: list[int],
    widths: list[int],
    num_inputs: int,
    rank: int,
    *,
    normed: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    num_slots: int = 3,
) -> Case:
    """A random case; the last ranks of every adapter but the first are zeros, as padding is."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int, spread: float = 1.0) -> torch.Tensor:
        return (spread * torch.randn(shape, generator=generator)).to(dtype)

    num_outputs, num_modules = sum(widths), len(widths)
    a = some(num_slots, num_modules, rank, num_inputs, spread=num_inputs**-0.5)
    b = some(num_slots, num_outputs, rank, spread=rank**-0.5)
    a[1:, :, rank // 2 :] = 0
    b[1:, :, rank // 2 :] = 0
    scales = 0.5 + torch.rand((num_slots, num_modules), generator=generator)
    bounds = tuple(np.cumsum([0, *widths]).tolist())
    x, out = some(len(slots), num_inputs), some(len(slots), num_outputs)
    weight = some(num_inputs) if normed else None
    wide = x.double()
    if weight is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()
    wanted = out.double()
    for token, slot in enumerate(slots):
        for module, (first, end) in enumerate(pairwise(bounds)):
            if slot >= 0:
                shrunk = a[slot, module].double() @ wide[token]
                delta = b[slot, first:end].double() @ shrunk
                wanted[token, first:end] += scales[slot, module].double() * delta
    norm = None if weight is None else InputNorm(weight.to(device), EPS)
    a, b, scales = (each.to(device) for each in (a, b, scales))
    stacks = Stacks(a[:, None], b[:, None], scales[:, None], bounds)
    return Case(
        out.to(device), out.clone(), x.to(device), stacks, norm, np.array(slots, np.int32), wanted
    )
