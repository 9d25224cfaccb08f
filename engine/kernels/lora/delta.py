"""What adapters add to the results of a product: scale * B (A x), each token by its own adapter.

Two kernels do it (`shrink` to the rank, `expand` to the outputs), of which the first runs beside
the product in a graph. They look at tokens that have an adapter alone, so that the results of all
others keep their bits. A token's sums have one order whatever the other tokens are: inputs are cut
into spans of fixed places, the sums of which are added in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine.contracts.adapters import NO_SLOT
from engine.kernels.activation import silu_and_mul
from engine.kernels.lora.expand import expand_gated_triton, expand_triton
from engine.kernels.lora.groups import TokenGroups
from engine.kernels.lora.shrink import (
    InputNorm,
    Shrunk,
    empty_shrunk,
    launch_shrink,
    shrink_triton,
)
from engine.kernels.lora.stacks import Stacks
from engine.kernels.norm import rms_norm_torch
from sampling.device.overlap import overlap_of

LONG = 4096
"""Inputs from which on shrinking them takes longer than a product has its first programs begun, so
that it begins before the kernel that makes the inputs has ended."""


def adapted_product(
    multiply: Callable[[], torch.Tensor], x: torch.Tensor, stacks: Stacks, groups: TokenGroups
) -> torch.Tensor:
    """Run a product of x [T, in], and add what the tokens' adapters make of x."""
    if not x.is_cuda or not len(groups.slots):
        out = multiply()
        add_delta(out, x, stacks, groups)
        return out
    shrunk, out, launch = shrunk_beside(multiply, x, stacks, groups)
    expand_triton(out, shrunk, stacks, groups, **launch)
    return out


def adapted_gated(
    multiply: Callable[[], torch.Tensor], x: torch.Tensor, stacks: Stacks, groups: TokenGroups
) -> torch.Tensor:
    """Run a product to a gate and values [T, 2 * m], add what adapters do, and join both [T, m]."""
    if not x.is_cuda or not len(groups.slots):
        return silu_and_mul(adapted_product(multiply, x, stacks, groups))
    shrunk, out, launch = shrunk_beside(multiply, x, stacks, groups)
    return expand_gated_triton(out, shrunk, stacks, groups, **launch)


def shrunk_beside(
    multiply: Callable[[], torch.Tensor], x: torch.Tensor, stacks: Stacks, groups: TokenGroups
) -> tuple[Shrunk, torch.Tensor, dict[str, Any]]:
    """Run a product and shrink its inputs, side by side in a graph.

    Returns:
        The shrunk inputs, the product, and the launch options of the kernel that takes both.
    """
    if not groups.in_graph:
        shrunk = shrink_triton(x, stacks, groups, None)
        return shrunk, multiply(), overlap_of(x)
    # Kernels that begin before the last one ends know of one last only.
    launch = {"overlap": overlap_of(x)["overlap"]}
    main, side = torch.cuda.current_stream(x.device), _side_stream(x.device)
    shrunk = empty_shrunk(x, stacks, groups, None)
    side.wait_stream(main)
    early = {"launch_pdl": x.shape[1] >= LONG}
    with torch.cuda.stream(side):
        launch_shrink(shrunk, x, stacks, groups, None, **launch, **early)
    out = multiply()
    main.wait_stream(side)
    return shrunk, out, launch


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
    shrunk = shrink_triton(x, stacks, groups, norm)
    if targets is not None:
        groups = groups._replace(tokens=targets)
    expand_triton(out, shrunk, stacks, groups)


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
