# mypy: allow-untyped-defs, allow-incomplete-defs
"""Decays and step sizes of linear recurrences, in float32 whatever their inputs' dtype.

Both are functions of single numbers, with step = softplus(a + dt_bias):

    decay = -exp(a_log) step, beta = beta_scale sigmoid(b)      (delta rule)
    decay = -exp(a_log) beta, beta = step within its limits     (state space)

Decays are logarithms. The recurrence's kernels compute them where they need them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from engine.kernels.recurrent.matrices import HeadWeights, Rule
from sampling.device.triton_support import jit, tl


def gates_torch(
    a: torch.Tensor, b: torch.Tensor, rule: Rule, weights: HeadWeights
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute decays, float32 of a's shape, and betas, float32 [T, H], of tokens' a and b."""
    rate = weights.a_log.exp()
    if a.dim() == 3:
        rate = rate[:, None]
    step = elementwise(F.softplus, a.float() + weights.dt_bias)
    if rule.delta:
        return -rate * step, elementwise(torch.sigmoid, b.float()) * rule.beta_scale
    step = step.clamp(*rule.step_limits)
    return -rate * step, step


@jit
def load_rate(weights, head, keys, sizes: tl.constexpr):
    """A head's exp(a_log) and its dt_bias, which by channel is at `keys` [1, K]."""
    if sizes.by_channel:
        bias_ptr = weights.dt_bias + head * sizes.k + keys
        bias = tl.load(bias_ptr, mask=keys < sizes.k, other=0.0)
    else:
        bias = tl.load(weights.dt_bias + head)
    return tl.exp(tl.load(weights.a_log + head)), bias


@jit
def gates(a, b, rate, bias, numbers, delta: tl.constexpr):
    """The decays and betas of a head's a and b; `load_rate` loads its rate and bias.

    Args:
        numbers: `Rule.numbers`.
    """
    step = _softplus(a.to(tl.float32) + bias)
    if delta:
        beta = numbers.beta_scale / (1.0 + tl.exp(-b.to(tl.float32)))
    else:
        step = tl.minimum(tl.maximum(step, numbers.least_step), numbers.most_step)
        beta = step
    return -rate * step, beta


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
