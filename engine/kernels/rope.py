# mypy: allow-untyped-defs, allow-incomplete-defs
"""Rotary position embedding (Su et al. 2021), halves convention, and what goes with it.

A pair (x[i], x[i + D/2]) of a head is rotated by the angle position * inv_freq[i]:

    y[i]       = x[i] * cos - x[i + D/2] * sin
    y[i + D/2] = x[i + D/2] * cos + x[i] * sin

With cos repeated over both halves and sin negated in the first, y = x * cos + swap(x) * sin where
swap exchanges the halves: one multiplication and one fused multiply-add.
"""

from __future__ import annotations

import torch

from engine.contracts.heads import Heads, Rotation
from engine.kernels.fp8 import stored_fp8
from engine.kernels.norm import by_weight, rms_norm
from engine.memory.pages import Cells
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

HEADS = 8
"""Number of heads that a program takes. With fewer most of its threads are idle; with more, a step
of one token has too few programs."""


def rope_table(inv_freq: torch.Tensor, scale: float, num_positions: int) -> torch.Tensor:
    """Make the table float32 [num_positions, D] of cos, then sin, of all angles, times `scale`.

    Pairs of speed zero are not rotated, nor scaled.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=inv_freq.device)
    angles = positions[:, None] * inv_freq.float()  # [num_positions, D / 2]
    scales = torch.where(inv_freq == 0.0, 1.0, scale)
    return torch.cat([angles.cos() * scales, angles.sin() * scales], dim=-1)


def rope_and_store(
    qkv: torch.Tensor, heads: Heads, rotation: Rotation, cells: Cells
) -> torch.Tensor:
    """Normalize (if `heads.norm` is given) and rotate queries and keys; store keys and values.

    Norms are rounded to qkv's dtype, rotations computed in float32 and rounded once.

    Returns:
        Queries [T, num_q, D]; `cells.queries` where that is given.
    """
    if qkv.is_cuda:
        return rope_and_store_triton(qkv, heads, rotation, cells)
    return rope_and_store_torch(qkv, heads, rotation, cells)


def rope_and_store_torch(
    qkv: torch.Tensor, heads: Heads, rotation: Rotation, cells: Cells
) -> torch.Tensor:
    num_rotated = heads.num_q + heads.num_kv
    split = qkv.view(len(qkv), heads.width, -1)
    if heads.num_between:
        split = torch.cat([split[:, : heads.num_q], split[:, -2 * heads.num_kv :]], dim=1)
    rotated = split[:, :num_rotated]
    if heads.norm is not None:
        rotated = rms_norm(rotated, heads.norm, heads.eps)
    rotated = rope(rotated, rotation)
    cells.store(rotated[:, heads.num_q :], split[:, num_rotated:])
    if cells.queries is None:
        return rotated[:, : heads.num_q]
    return cells.queries.copy_(rotated[:, : heads.num_q])


def rope(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate heads x [T, heads, D] by their token's rotation."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    cos, sin = rotation.cos_and_sin
    rotated = torch.addcmul(x * cos, swapped, sin)
    return rotated if rotated.dtype == x.dtype else rotated.to(x.dtype)


@jit(do_not_specialize_on_alignment=["positions_ptr"])  # a drafter's begin anywhere
def _rope_and_store_kernel(
    qkv_ptr,
    table_ptr,
    positions_ptr,
    norm_ptr,
    q_ptr,
    cells_ptr,
    key_rows_ptr,
    eps,
    values_after,  # cells from a key to its value
    scales_ptr,
    num_q: tl.constexpr,
    num_kv: tl.constexpr,
    num_between: tl.constexpr,
    has_norm: tl.constexpr,
    HALF: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes HEADS heads of a token; HALF of its BLOCK lanes are real."""
    begin_next(overlap)
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    num_rotated: tl.constexpr = num_q + num_kv
    is_value = heads >= num_rotated
    inside = (lanes < HALF) & (heads < num_rotated + num_kv)
    rotated = inside & (heads < num_rotated)
    if has_norm:
        weight_ptr = norm_ptr + heads * 2 * HALF + lanes
        x_weight = tl.load(weight_ptr, mask=rotated, other=1.0).to(tl.float32)
        y_weight = tl.load(weight_ptr + HALF, mask=rotated, other=1.0).to(tl.float32)
    wait_for_last(overlap)
    place = heads + tl.where(heads >= num_q, num_between, 0)
    x_ptr = qkv_ptr + (token * (num_rotated + num_kv + num_between) + place) * 2 * HALF + lanes
    low = tl.load(x_ptr, mask=inside, other=0.0)
    high = tl.load(x_ptr + HALF, mask=inside, other=0.0)
    dtype = low.dtype
    x = low.to(tl.float32)
    y = high.to(tl.float32)
    if has_norm:
        scale = tl.rsqrt(tl.sum(x * x + y * y, 1) / (2 * HALF) + eps)[:, None]
        x = by_weight(x * scale, x_weight, norm_ptr, low).to(tl.float32)
        y = by_weight(y * scale, y_weight, norm_ptr, low).to(tl.float32)
    angles_ptr = table_ptr + tl.load(positions_ptr + token) * 2 * HALF + lanes
    cos = tl.load(angles_ptr, mask=lanes < HALF, other=0.0)
    sin = tl.load(angles_ptr + HALF, mask=lanes < HALF, other=0.0)
    new_low = tl.where(is_value, low, (x * cos - y * sin).to(dtype))
    new_high = tl.where(is_value, high, (y * cos + x * sin).to(dtype))
    is_query = inside & (heads < num_q)
    out_ptr = q_ptr + (token * num_q + heads) * 2 * HALF + lanes
    tl.store(out_ptr, new_low, mask=is_query)
    tl.store(out_ptr + HALF, new_high, mask=is_query)
    row = tl.load(key_rows_ptr + token)
    kv_head = tl.where(is_value, values_after * num_kv + heads - num_rotated, heads - num_q)
    cell_ptr = cells_ptr + (row * num_kv + kv_head) * 2 * HALF + lanes
    stored = inside & (heads >= num_q)
    if scales_ptr is None:
        tl.store(cell_ptr, new_low, mask=stored)
        tl.store(cell_ptr + HALF, new_high, mask=stored)
    else:
        # Keys' scales, then values': in the order of the heads after the queries'.
        scale = tl.load(scales_ptr + heads - num_q, mask=stored, other=1.0)
        tl.store(cell_ptr, stored_fp8(new_low, scale), mask=stored)
        tl.store(cell_ptr + HALF, stored_fp8(new_high, scale), mask=stored)


def rope_and_store_triton(
    qkv: torch.Tensor, heads: Heads, rotation: Rotation, cells: Cells
) -> torch.Tensor:
    """Compute `rope_and_store` in a kernel; all tensors are contiguous."""
    head_dim = cells.tensor.shape[-1]
    num_heads = heads.num_q + 2 * heads.num_kv
    assert qkv.is_contiguous()
    assert qkv.shape[1] == heads.width * head_dim
    q = cells.queries
    if q is None:
        q = torch.empty((len(qkv), heads.num_q, head_dim), dtype=qkv.dtype, device=qkv.device)
    _rope_and_store_kernel[(len(qkv), triton.cdiv(num_heads, HEADS))](
        qkv,
        rotation.table,
        rotation.positions,
        qkv if heads.norm is None else heads.norm,
        q,
        cells.tensor,
        cells.key_rows,
        heads.eps,
        cells.values_after,
        cells.scales,
        num_q=heads.num_q,
        num_kv=heads.num_kv,
        num_between=heads.num_between,
        has_norm=heads.norm is not None,
        HALF=head_dim // 2,
        HEADS=HEADS,
        BLOCK=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
        **overlap_of(qkv),
    )
    return q
