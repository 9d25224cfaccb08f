"""LayerNorm, alone and after a residual addition, by the library's kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Normalize x [T, d]: (x - mean) / sqrt(variance + eps) * weight + bias, in float32."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add and normalize: (layer_norm(x + residual), x + residual); overwrites `residual`."""
    residual += x
    return layer_norm(residual, weight, bias, eps), residual
