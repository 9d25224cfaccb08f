# mypy: allow-untyped-defs, allow-incomplete-defs
"""Decays and step sizes of linear recurrences, in float32 whatever their inputs' dtype.

Both are functions of single numbers: decay = -exp(a_log) softplus(a + dt_bias), beta a sigmoid, or
the softplus itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

LANES = 256
"""The numbers that a program computes."""


def delta_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gates of a delta rule: log decay -exp(a_log) softplus(a + dt_bias), and beta.

    Args:
        a: [T, H] or, by channel, [T, H, K]. b: [T, H]; beta is its sigmoid times `beta_scale`.
        a_log: float32 [H]. dt_bias: float32, of a token's `a`.

    Returns:
        float32 of a's shape, at most 0, and float32 [T, H].
    """
    if a.is_cuda:
        return delta_gates_triton(a, b, a_log, dt_bias, beta_scale)
    return delta_gates_torch(a, b, a_log, dt_bias, beta_scale)


def delta_gates_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    rate = a_log.exp()
    if a.dim() == 3:
        rate = rate[:, None]
    decay = -rate * elementwise(F.softplus, a.float() + dt_bias)
    return decay, elementwise(torch.sigmoid, b.float()) * beta_scale


def space_gates(
    dt: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, limits: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gates of a state space: log decay -exp(a_log) dt, and dt, float32 [T, H].

    dt is softplus(dt + dt_bias) within `limits`.

    Args:
        dt: [T, H]. a_log, dt_bias: float32 [H].
    """
    if dt.is_cuda:
        return space_gates_triton(dt, a_log, dt_bias, limits)
    return space_gates_torch(dt, a_log, dt_bias, limits)


def space_gates_torch(
    dt: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, limits: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    step = elementwise(F.softplus, dt.float() + dt_bias).clamp(*limits)
    return -a_log.exp() * step, step


@jit
def _softplus(x):
    """log(1 + exp(x)), as max(x, 0) + log(1 + e) with e = exp(-|x|), by the series of 2 atanh(s).

    s = e / (2 + e) is at most 1/3, where the first term left out is 2e-8 of the sum.
    """
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    tail = 1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13)))))
    return tl.maximum(x, 0.0) + 2.0 * (s + s * q * tail)


class _Shape(NamedTuple):
    """What the kernel is compiled for.

    Attributes:
        width: decays of a token. channels: decays of a head.
        delta: of a delta rule, else of a state space.
    """

    width: int
    channels: int
    delta: bool


@jit(do_not_specialize=["count"])
def _gates_kernel(
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    decay_ptr,
    beta_ptr,
    a_stride,
    b_stride,
    count,
    beta_scale,
    low,
    high,
    shape: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes BLOCK of all tokens' decays, and the betas of those that begin a head."""
    begin_next(overlap)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    token, lane = at // shape.width, at % shape.width
    head = lane // shape.channels
    rate = tl.exp(tl.load(a_log_ptr + head, mask=inside, other=0.0))
    bias = tl.load(dt_bias_ptr + lane, mask=inside, other=0.0)
    wait_for_last(overlap)
    a = tl.load(a_ptr + token * a_stride + lane, mask=inside, other=0.0)
    step = _softplus(a.to(tl.float32) + bias)
    if shape.delta:
        begins = inside & (lane % shape.channels == 0)
        b = tl.load(b_ptr + token * b_stride + head, mask=begins, other=0.0).to(tl.float32)
        beta = beta_scale / (1.0 + tl.exp(-b))
        tl.store(beta_ptr + token * (shape.width // shape.channels) + head, beta, mask=begins)
    else:
        step = tl.minimum(tl.maximum(step, low), high)
        tl.store(beta_ptr + at, step, mask=inside)
    tl.store(decay_ptr + at, -rate * step, mask=inside)


def delta_gates_triton(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `delta_gates` in a kernel; a token's numbers lie one after another."""
    channels = a.shape[2] if a.dim() == 3 else 1
    return _launch(a, b, a_log, dt_bias, beta_scale, (0.0, 0.0), channels)


def space_gates_triton(
    dt: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, limits: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `space_gates` in a kernel; a token's numbers lie one after another."""
    return _launch(dt, None, a_log, dt_bias, 1.0, limits, 1)


def _launch(
    a: torch.Tensor,
    b: torch.Tensor | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_scale: float,
    limits: tuple[float, float],
    channels: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, heads = a.shape[:2]
    width = heads * channels
    assert a[0].is_contiguous()
    assert dt_bias.is_contiguous()
    assert b is None or b.stride(1) == 1
    decay = torch.empty(a.shape, dtype=torch.float32, device=a.device)
    beta = torch.empty((num_tokens, heads), dtype=torch.float32, device=a.device)
    _gates_kernel[(triton.cdiv(num_tokens * width, LANES),)](
        a,
        b,
        a_log,
        dt_bias,
        decay,
        beta,
        a.stride(0),
        0 if b is None else b.stride(0),
        num_tokens * width,
        beta_scale,
        *limits,
        shape=_Shape(width, channels, b is not None),
        BLOCK=LANES,
        num_warps=4,
        **overlap_of(a),
    )
    return decay, beta
