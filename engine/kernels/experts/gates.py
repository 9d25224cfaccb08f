# mypy: allow-untyped-defs, allow-incomplete-defs
"""How an expert joins its gate and its values, in float32: by name, in torch and in kernels.

silu     silu(gate) * up
gpt-oss  (up + 1) * gate * sigmoid(1.702 gate), gate at most 7, up from -7 to 7
gelu     gelu(gate) * up, by its approximation with tanh
relu2    max(gate, 0)², of experts that have no up product
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from sampling.device.triton_support import constexpr, jit, tl

SILU, GPT_OSS, GELU_TANH, RELU2 = "silu", "gpt-oss", "gelu_tanh", "relu2"
ALPHA, LIMIT = 1.702, 7.0

_ALPHA, _LIMIT = constexpr(ALPHA), constexpr(LIMIT)
_SQRT_2_OVER_PI = constexpr((2 / math.pi) ** 0.5)


def num_products(kind: str | None) -> int:
    """How many products an expert has of its input; None of the kind is the product back."""
    return 2 if kind in (SILU, GPT_OSS, GELU_TANH) else 1


def join_torch(products: torch.Tensor, kind: str) -> torch.Tensor:
    """Join an expert's products [n, num_products * inner], gate before up."""
    if kind == RELU2:
        return F.relu(products).square()
    gate, up = products.chunk(2, dim=-1)
    if kind == SILU:
        return elementwise(F.silu, gate) * up
    if kind == GELU_TANH:
        return elementwise(partial(F.gelu, approximate="tanh"), gate) * up
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return (up + 1) * gate * elementwise(torch.sigmoid, gate * ALPHA)


@jit
def join(gate, up, kind: tl.constexpr):
    """Join float32 gate and up; `up` is not read where experts have none."""
    if kind == "silu":
        joined = gate / (1.0 + tl.exp(-gate)) * up
    elif kind == "gelu_tanh":  # 1 + tanh(z) is 2 / (1 + exp(-2 z))
        z = _SQRT_2_OVER_PI * (gate + 0.044715 * gate * gate * gate)
        joined = gate / (1.0 + tl.exp(-2.0 * z)) * up
    elif kind == "relu2":
        joined = tl.maximum(gate, 0.0, tl.PropagateNan.ALL)
        joined *= joined
    else:
        gate = tl.minimum(gate, _LIMIT, tl.PropagateNan.ALL)
        up = tl.clamp(up, -_LIMIT, _LIMIT, tl.PropagateNan.ALL)
        joined = (up + 1.0) * (gate / (1.0 + tl.exp(-gate * _ALPHA)))
    return joined


@jit
def plus_delta(total, delta, mask):
    """Add what is not zero: a sum that nothing is added to keeps its bits, the sign of 0 too."""
    own = tl.load(delta, mask=mask, other=0.0).to(tl.float32)
    return tl.where(own == 0.0, total, total + own)
