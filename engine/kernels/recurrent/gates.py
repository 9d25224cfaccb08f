"""Decays and step sizes of linear recurrences, in float32 whatever their inputs' dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise


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
    step = elementwise(F.softplus, dt.float() + dt_bias).clamp(*limits)
    return -a_log.exp() * step, step
