"""Attention over keys that were gathered from the cache, with every feature of AttentionSpec.

Letters in shapes: n rows, q query tokens a row, L keys a row, H key heads, G query heads a key
head, D head_dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import AttentionSpec

SCORE_ELEMENTS = 1 << 24
"""Number of attention scores held at once on the explicit path (64 MiB of float32); longer queries
go in slices."""


class Visible(NamedTuple):
    """The keys that each query sees.

    Attributes:
        bias: [n, 1, q, L]; 0 where seen, -inf elsewhere.
        distance: float32 [n, 1, q, L]; key position - query position; None without ALiBi layers.
    """

    bias: torch.Tensor
    distance: torch.Tensor | None


def attend_dense(
    spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible
) -> torch.Tensor:
    """Attend from q [n, H * G, q, D] to k, v [n, H, L, D] → [n, H * G, q, D]."""
    num_rows, num_heads, num_queries, head_dim = q.shape
    if spec.softcap is None and spec.alibi_slopes is None and spec.sinks is None:
        shape = q.shape
        if num_queries == 1:  # a key head's queries side by side: keys are read once, not G times
            q = q.reshape(num_rows, spec.num_kv_heads, -1, head_dim)
        is_grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible.bias, scale=spec.scale, enable_gqa=is_grouped
        ).reshape(shape)
    step = max(1, SCORE_ELEMENTS // (num_rows * num_heads * k.shape[2]))
    parts = [
        _attend_explicitly(
            spec, q[:, :, start : start + step], k, v, _queries_of(visible, start, step)
        )
        for start in range(0, num_queries, step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _queries_of(visible: Visible, start: int, step: int) -> Visible:
    rows = slice(start, start + step)
    distance = visible.distance
    return Visible(visible.bias[:, :, rows], None if distance is None else distance[:, :, rows])


def _attend_explicitly(
    spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible
) -> torch.Tensor:
    """Attend by float32 scores and softmax, for features the library's attention lacks."""
    num_rows, num_heads, num_queries, head_dim = q.shape
    grouped = (num_rows, spec.num_kv_heads, -1, head_dim)  # [n, H, G * q, D]
    scores = q.float().reshape(grouped) @ k.float().transpose(2, 3)
    scores = scores.view(num_rows, num_heads, num_queries, -1) * spec.scale  # [n, H * G, q, L]
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if spec.alibi_slopes is not None:
        assert visible.distance is not None
        scores = scores + spec.alibi_slopes.view(1, -1, 1, 1) * visible.distance
    scores = scores + visible.bias
    if spec.sinks is not None:
        sinks = spec.sinks.view(1, -1, 1, 1).expand(num_rows, -1, num_queries, -1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    out = weights.reshape(num_rows, spec.num_kv_heads, -1, weights.shape[-1]) @ v.float()
    return out.view(num_rows, num_heads, num_queries, head_dim).to(q.dtype)
