"""What adapters add to the results of a product: scale * B (A x), each token by its own adapter.

Two kernels do it (`shrink` to the rank, `expand` to the outputs). They look at tokens that have an
adapter alone, so that the results of all others keep their bits. A token's sums have one order
whatever the other tokens are: inputs are cut into spans of fixed places, the sums of which are
added in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.adapters import NO_SLOT
from engine.kernels.lora.expand import expand_triton
from engine.kernels.lora.groups import TokenGroups
from engine.kernels.lora.shrink import InputNorm, shrink_triton
from engine.kernels.norm import rms_norm_torch


class Stacks(NamedTuple):
    """The adapters of one product in S slots; the product joins the outputs of P modules.

    A product of experts has E of them, and the slots of its tiles are slot * E + expert; E is 1 for
    all others.

    Attributes:
        a: [S, E, P, R, in]; of an embedding, which has one module, [S, 1, in, R].
        b: [S, E, out, R]. Ranks below R are padded with zeros.
        scales: float32 [S, E, P].
        blocks: int32 [N, 3], blocks of outputs: the module that they are of, the first, and the
            one after the last. At most `expand.COLUMNS` are in one.
        bounds: the first output of each module, and the one after the last.
    """

    a: torch.Tensor
    b: torch.Tensor
    scales: torch.Tensor
    blocks: torch.Tensor
    bounds: tuple[int, ...]


def add_delta(
    out: torch.Tensor,
    x: torch.Tensor,
    stacks: Stacks,
    groups: TokenGroups,
    norm: InputNorm | None = None,
    targets: torch.Tensor | None = None,
) -> None:
    """Add to a product's results what the tokens' adapters make of its inputs.

    Args:
        out: [T, out], is written to.
        x: [T, in], the inputs, in the dtype of the adapters.
        norm: RMSNorm of the inputs, which `x` has yet to pass; None for none.
        targets: int32 [N, TILE], rows of `out` in the places of `groups.tokens`, which then are
            rows of `x` alone; None where they are the same.
    """
    if not len(groups.slots):
        return
    compute = add_delta_triton if out.is_cuda else add_delta_torch
    compute(out, x, stacks, groups, norm, targets)


def add_delta_triton(
    out: torch.Tensor,
    x: torch.Tensor,
    stacks: Stacks,
    groups: TokenGroups,
    norm: InputNorm | None = None,
    targets: torch.Tensor | None = None,
) -> None:
    """Compute `add_delta` by the two kernels."""
    shrunk = shrink_triton(x, stacks.a, groups, norm)
    if targets is not None:
        groups = groups._replace(tokens=targets)
    expand_triton(out, shrunk, stacks.b, stacks.scales, stacks.blocks, groups)


def add_delta_torch(
    out: torch.Tensor,
    x: torch.Tensor,
    stacks: Stacks,
    groups: TokenGroups,
    norm: InputNorm | None = None,
    targets: torch.Tensor | None = None,
) -> None:
    """Compute `add_delta` in plain torch: tile by tile, so that all products have one shape."""
    num_experts = stacks.a.shape[1]
    sources, slots = groups.tokens.to(torch.int64), groups.slots.tolist()
    places = sources if targets is None else targets.to(torch.int64)
    for source, place, slot in zip(sources, places, slots, strict=True):
        if slot == NO_SLOT:
            continue
        rows = x[source.clamp(min=0)]
        if norm is not None:
            rows = rms_norm_torch(rows, norm.weight, norm.eps)
        own = divmod(slot, num_experts)
        a, b, scales = stacks.a[own], stacks.b[own], stacks.scales[own].tolist()
        here = place[place >= 0]
        for module, scale in enumerate(scales):
            first, end = stacks.bounds[module : module + 2]
            delta = ((rows @ a[module].t()) @ b[first:end].t()) * scale
            out[here, first:end] += delta[: len(here)].to(out.dtype)
