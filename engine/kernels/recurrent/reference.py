"""Textbook recurrences in float64, one token after another, for tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

NORM_EPS = 1e-6
"""Added to the sum of squares of a query or key before its root is taken."""


def causal_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    history: torch.Tensor | None = None,
) -> torch.Tensor:
    """y[t, c] = Σ_j weight[c, j] x[t - W + 1 + j, c] + bias[c]; float64 [T, C].

    Args:
        x: [T, C]. weight: [C, W]. bias: [C].
        history: [W - 1, C], the inputs before x; None is zeros.
    """
    width = weight.shape[1]
    before = x.new_zeros(width - 1, x.shape[1]) if history is None else history
    padded = torch.cat([before, x]).double()
    out = torch.stack([(padded[t : t + width] * weight.double().T).sum(0) for t in range(len(x))])
    return out if bias is None else out + bias.double()


def delta_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decays -exp(a_log) softplus(a + dt_bias) and betas beta_scale sigmoid(b), float64.

    Args:
        a: [T, H] or [T, H, K], as dt_bias without T. b: [T, H]. a_log: [H].
    """
    rate = a_log.double().exp()
    if a.dim() == 3:
        rate = rate[:, None]
    return -rate * F.softplus(a.double() + dt_bias.double()), beta_scale * b.double().sigmoid()


def space_steps(
    dt: torch.Tensor, dt_bias: torch.Tensor, limits: tuple[float, float]
) -> torch.Tensor:
    """Step sizes softplus(dt + dt_bias) within limits, float64 [T, H]."""
    return F.softplus(dt.double() + dt_bias.double()).clamp(*limits)


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule (Yang et al. 2024, arXiv 2412.06464), float64.

    With queries and keys of unit length, of every head
    S ← exp(decay) S;  δ = beta (v - S k);  S ← S + δ kᵀ;  o = S q / sqrt(K).
    A decay a channel (Kimi Delta Attention) multiplies the columns of S.

    Args:
        q, k: [T, Hk, K]; a key head serves H / Hk value heads one after another.
        v: [T, H, V]. decay: [T, H] or [T, H, K], logarithms. beta: [T, H].
        state: [H, V, K]; None is zeros.

    Returns:
        [T, H, V], and the state after the last token.
    """
    heads, group = v.shape[1], v.shape[1] // k.shape[1]
    q, k = (_unit(x.double()).repeat_interleave(group, dim=1) for x in (q, k))
    v, beta, decay = v.double(), beta.double(), decay.double()
    if state is None:
        state = torch.zeros(heads, v.shape[-1], k.shape[-1], dtype=torch.float64)
    state, out = state.double().clone(), []
    for t in range(len(v)):
        factor = decay[t].exp()
        state = state * (factor[:, None, None] if factor.dim() == 1 else factor[:, None, :])
        read = torch.einsum("hvk,hk->hv", state, k[t])
        delta = beta[t, :, None] * (v[t] - read)
        state = state + torch.einsum("hv,hk->hvk", delta, k[t])
        out.append(torch.einsum("hvk,hk->hv", state, q[t]) * q.shape[-1] ** -0.5)
    return torch.stack(out), state


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + NORM_EPS).sqrt()


def state_space(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    d: torch.Tensor,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mamba 2's recurrence (Dao and Gu 2024, arXiv 2405.21060), float64.

    Of every head S ← exp(dt a) S + dt x bᵀ;  y = S c + d x.

    Args:
        x: [T, H, P]. b, c: [T, G, N]; a group serves H / G heads one after another.
        dt: [T, H], after softplus. a: [H], negative. d: [H].
        state: [H, P, N]; None is zeros.

    Returns:
        [T, H, P], and the state after the last token.
    """
    heads, group = x.shape[1], x.shape[1] // b.shape[1]
    b, c = (each.double().repeat_interleave(group, dim=1) for each in (b, c))
    x, dt, a, d = x.double(), dt.double(), a.double(), d.double()
    if state is None:
        state = torch.zeros(heads, x.shape[-1], b.shape[-1], dtype=torch.float64)
    state, out = state.double().clone(), []
    for t in range(len(x)):
        state = state * (dt[t] * a).exp()[:, None, None]
        state = state + torch.einsum("hp,hn->hpn", dt[t, :, None] * x[t], b[t])
        out.append(torch.einsum("hpn,hn->hp", state, c[t]) + d[:, None] * x[t])
    return torch.stack(out), state


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    gate_first: bool,
    sigmoid: bool = False,
) -> torch.Tensor:
    """RMSNorm of groups [T, G, D], gated before or after it by silu or sigmoid, float64."""
    x, gate, weight = x.double(), gate.double(), weight.double()
    factor = gate.sigmoid() if sigmoid else F.silu(gate)
    if gate_first:
        x = x * factor
    x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return x if gate_first else x * factor
