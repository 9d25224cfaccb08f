# mypy: allow-untyped-defs, allow-incomplete-defs
"""The product of a lone row with its adapter, in one launch.

Beside `skinny_linear` the first programs multiply the row by A, as if its rows were more of the
weight. All others take from them what the row was shrunk to, once their own sums are there, and
add their outputs of B. They wait for programs of their own launch, which is safe: programs begin
in order, so those that are waited for began before.

What programs hand over is a number and the count of the step in one word, so that a number of an
earlier step is not taken for it, and no launch has to clear the words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.lora.stacks import Stacks
from engine.kernels.skinny import Norm, SkinnyShape, gated_with, normed_input
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

MOST_ROWS = 4
"""Outputs of a program at most, see `lone_shape`."""
COPIES = 32
"""Places where a number is handed over: a thousand programs that read one line of memory at once
wait for each other longer than for the number."""

NARROW = 1 << 10
"""Widest block of input features of the smallest programs."""


class Handover(NamedTuple):
    """Where the programs of a launch hand numbers over.

    Attributes:
        words: int64 [COPIES, N], the count of the step above the bits of a float32.
        step: int32 [1], that count.
    """

    words: torch.Tensor
    step: torch.Tensor


class Handovers:
    """Words for all products of a step, each of which has its own.

    Args:
        num_products: of a step. num_numbers: that one hands over at most.
    """

    def __init__(self, num_products: int, num_numbers: int, device: torch.device) -> None:
        shape = (num_products, COPIES, num_numbers)
        self._words = torch.zeros(shape, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int32, device=device)
        self._num_taken = 0

    def begin(self) -> None:
        """Begin a step; in a graph, each replay begins one."""
        self._step += 1
        self._num_taken = 0

    def take(self) -> Handover | None:
        """The words of the step's next product; None where a step has more of them than most."""
        if self._num_taken == len(self._words):
            return None
        self._num_taken += 1
        return Handover(self._words[self._num_taken - 1], self._step)


@jit
def _hand_over(words, step, row, number, copy_stride, COPIES: tl.constexpr):  # noqa: N803
    """Write numbers [ROWS] of the shrunk row to all places where programs wait for them."""
    low = number.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    word = (step.to(tl.int64) << 32) | low
    copies = words + tl.arange(0, COPIES)[None, :] * copy_stride
    places = tl.zeros((1, COPIES), tl.int64)
    tl.atomic_xchg(copies + row[:, None], word[:, None] + places, sem="relaxed")


@jit
def _taken(word, at, step):
    """Wait until words are of this step, and take their numbers: float32 [RANK]."""
    while tl.max(((word >> 32) != step).to(tl.int32), 0) != 0:
        word = tl.load(at, volatile=True)
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@jit
def _module_of(n, bounds, num_modules: tl.constexpr):
    """The module that output n is of."""
    module = n * 0
    for each in tl.static_range(1, num_modules):
        module += (n >= bounds[each]).to(tl.int32)
    return module


@jit(do_not_specialize=["scale_stride"])
def _lone_kernel(
    x,
    residual,
    norm_weight,
    weight,
    bias,
    out,
    sums,
    a,
    b,
    scales,
    slots,
    words,
    step,
    bounds,
    slot_stride_a,
    slot_stride_b,
    scale_stride,
    copy_stride,
    eps,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    num_modules: tl.constexpr,
    gated: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    COPIES: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS numbers of the shrunk row, or ROWS outputs; gated, of either half.

    What comes from memory is asked for before what comes from a cache, and both kinds of programs
    go one way: so as much of the weight is on its way at once as in `skinny_linear`.
    """
    begin_next(overlap)
    num_numbers: tl.constexpr = num_modules * RANK // (2 if gated else 1)  # of a half
    num_shrinking: tl.constexpr = num_numbers // ROWS
    program = tl.program_id(0)
    begin = (program - num_shrinking) * ROWS
    source, limit = weight, begin * 0 + out_features
    # Which adapter the row has is known before the step begins, so this waits for no kernel.
    slot, count = tl.load(slots).to(tl.int64), tl.load(step)
    has_adapter, slot = slot >= 0, tl.maximum(slot, 0)  # what is read of it in vain is not used
    if program < num_shrinking:
        source, limit = a + slot * slot_stride_a, limit * 0 + num_numbers
        begin = program * ROWS
    n, k = begin + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here, inside = n < limit, k < in_features
    both = here[:, None] & inside[None, :]
    tile_ptr = source + n[:, None].to(tl.int64) * in_features + k[None, :]
    tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    if gated:
        tile_ptr += limit.to(tl.int64) * in_features
        up_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    tl.debug_barrier()  # which the compiler moves no loads over, here those that wait for the slot
    own_scales, own_b = scales + slot * scale_stride, b + slot * slot_stride_b
    r = tl.arange(0, RANK)
    module = _module_of(begin, bounds, num_modules)
    b_ptr, own_here = own_b + n[:, None] * RANK + r[None, :], (n < out_features)[:, None]
    scale, b_tile = tl.load(own_scales + module), tl.load(b_ptr, mask=own_here, other=0.0)
    if gated:
        up_module = _module_of(begin + out_features, bounds, num_modules)
        up_scale = tl.load(own_scales + up_module)
        up_b = tl.load(b_ptr + out_features * RANK, mask=own_here, other=0.0)
    wait_for_last(overlap)
    # All programs but the first on their processors find the numbers here, and wait no more.
    at = words + program % COPIES * copy_stride + r
    word = tl.load(at + module * RANK, volatile=True)
    if gated:
        up_word = tl.load(at + up_module * RANK, volatile=True)
    tl.debug_barrier()  # or they are asked for where they are needed
    first = program == 0
    value = normed_input(x, residual, norm_weight, sums, k, inside, eps, in_features, first)
    dtype = out.dtype.element_ty
    result = tl.sum(tile.to(tl.float32) * value[None, :], 1)
    if gated:
        up = tl.sum(up_tile.to(tl.float32) * value[None, :], 1)
    if program < num_shrinking:
        _hand_over(words, count, n, result, copy_stride, COPIES)
        if gated:
            _hand_over(words + num_numbers, count, n, up, copy_stride, COPIES)
        return
    if bias is not None:
        result += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)
        if gated:
            up += tl.load(bias + out_features + n, mask=here, other=0.0).to(tl.float32)
    if has_adapter:
        shrunk = _taken(word, at + module * RANK, count)
        result += tl.sum(b_tile.to(tl.float32) * shrunk[None, :], 1) * scale
        if gated:
            shrunk = _taken(up_word, at + up_module * RANK, count)
            up += tl.sum(up_b.to(tl.float32) * shrunk[None, :], 1) * up_scale
    if gated:
        result = gated_with(result.to(dtype), up.to(dtype))
    tl.store(out + n, result.to(dtype), mask=here)


def lone_shape(block: int, *, gated: bool) -> SkinnyShape:
    """The fast shape of a launch for `block` input features, a power of two.

    It is not `skinny.launch_shape`: what programs wait for is on its way while they multiply, so
    fewer of them with more outputs each lose less. On an H200 a layer's products of a lone row with
    an adapter took 97.0 us for 110.2 with the shapes of `skinny_linear` at Qwen3-8B, 14.0 for 16.3
    at Qwen3-0.6B (`benchmarks.bench_lora_kernels`).
    """
    if block > NARROW:
        return SkinnyShape(2, 4)
    return SkinnyShape(4, 2) if gated else SkinnyShape(4, 1)


def is_even(stacks: Stacks) -> bool:
    """Whether no program of `lone_linear` has outputs of two modules."""
    return all(bound % MOST_ROWS == 0 for bound in stacks.bounds)


def lone_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stacks: Stacks,
    slots: torch.Tensor,
    handover: Handover,
    *,
    norm: Norm | None = None,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply x [1, in_features] as `skinny_linear` does, and add what its adapter makes of it.

    Args:
        slots: int32 [1], of the row's adapter, known before the step. Without one the result is
            that of `skinny_linear` in the same shape.
        handover: words of its own in this step, one for each module and rank.
        stacks: `is_even`.
    """
    in_features = x.shape[1]
    assert x.is_contiguous()
    out_features = len(weight) // 2 if gated else len(weight)
    block = triton.next_power_of_2(in_features)
    shape = lone_shape(block, gated=gated)
    assert all(bound % shape.rows == 0 for bound in stacks.bounds)
    _, _, num_modules, rank, _ = stacks.a.shape
    out = torch.empty((1, out_features), dtype=x.dtype, device=x.device)
    residual = norm.residual if norm else None
    sums = x if residual is None else torch.empty_like(x)
    num_shrinking = num_modules * rank // (2 * shape.rows if gated else shape.rows)
    num_programs = num_shrinking + triton.cdiv(out_features, shape.rows)
    _lone_kernel[(num_programs,)](
        x,
        residual,
        norm.weight if norm else None,
        weight,
        bias,
        out,
        sums,
        stacks.a,
        stacks.b,
        stacks.scales,
        slots,
        handover.words,
        handover.step,
        stacks.bounds,
        stacks.a.stride(0),
        stacks.b.stride(0),
        stacks.scales.stride(0),
        handover.words.stride(0),
        norm.eps if norm else 0.0,
        in_features=in_features,
        out_features=out_features,
        num_modules=num_modules,
        gated=gated,
        RANK=rank,
        ROWS=shape.rows,
        BLOCK=block,
        COPIES=COPIES,
        num_warps=shape.warps,
        **overlap_of(x),
    )
    return out, sums
