"""Random quantized experts."""

from __future__ import annotations

import numpy as np
import torch

from engine.kernels.experts.nibbles import MXFP4
from engine.kernels.experts.products import Fp8ExpertProduct, Int4ExpertProduct
from engine.kernels.quantized.int4 import pack

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp8_experts(
    num_experts: int, channels: int, width: int, device: str, *, by_spans: bool
) -> Fp8ExpertProduct:
    shape = (num_experts, channels, -(-width // 128)) if by_spans else (num_experts, channels)
    scales = (0.5 + torch.rand(shape, device=device)) / 100 * width**-0.5
    values = torch.randn(num_experts, channels, width, device=device) * 100
    return Fp8ExpertProduct(values.clamp(-448, 448).to(torch.float8_e4m3fn), scales)


def int4_experts(
    num_experts: int, channels: int, width: int, kind: tuple[str, int, bool, torch.dtype]
) -> tuple[Int4ExpertProduct, torch.Tensor]:
    """Random weights, and their values in float64 [experts, channels, width]."""
    code, group, has_zeros, dtype = kind
    group = group or width
    rows, num_groups = num_experts * channels, width // group
    q = torch.randint(0, 16, (rows, width), dtype=torch.uint8)
    zeros = torch.randint(1, 16, (rows, num_groups), dtype=torch.uint8) if has_zeros else None
    if code == MXFP4:
        scales = 2.0 ** torch.randint(-6, -2, (rows, num_groups)).double() * width**-0.5
        scales = 2.0 ** scales.log2().round()
        values = torch.from_numpy(np.where(q > 7, -1, 1) * E2M1[q.numpy() & 7])
    else:
        scales = (0.1 + torch.rand(rows, num_groups)) / 4 * width**-0.5
        middle = torch.full((rows, num_groups), 8.0) if zeros is None else zeros
        values = q.double() - middle.double().repeat_interleave(group, 1)
    scales = scales.to(dtype)
    groups = pack(q, scales, zeros, group)
    wide = values * scales.double().repeat_interleave(group, 1)
    return Int4ExpertProduct(groups, num_experts, code), wide.view(num_experts, channels, width)


def on(weights: Int4ExpertProduct, device: str) -> Int4ExpertProduct:
    groups = weights.groups
    moved = groups._replace(
        words=groups.words.to(device),
        scales=groups.scales.to(device),
        zeros=None if groups.zeros is None else groups.zeros.to(device),
    )
    return weights._replace(groups=moved)
