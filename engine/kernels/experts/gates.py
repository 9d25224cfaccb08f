# mypy: allow-untyped-defs, allow-incomplete-defs
"""How an expert joins its gate and its values, in float32: by name, in torch and in kernels.

silu     silu(gate) * up
gpt-oss  (up + 1) * gate * sigmoid(1.702 gate), gate at most 7, up from -7 to 7
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from sampling.device.triton_support import constexpr, jit, tl

SILU, GPT_OSS = "silu", "gpt-oss"
ALPHA, LIMIT = 1.702, 7.0

_ALPHA, _LIMIT = constexpr(ALPHA), constexpr(LIMIT)


def join_torch(gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
    """Join gate and up, of one shape and dtype."""
    if kind == SILU:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return (up + 1) * gate * torch.sigmoid(gate * ALPHA)


@jit
def join(gate, up, kind: tl.constexpr):
    """Join float32 gate and up."""
    if kind == "silu":
        joined = gate / (1.0 + tl.exp(-gate)) * up
    else:
        gate = tl.minimum(gate, _LIMIT, tl.PropagateNan.ALL)
        up = tl.clamp(up, -_LIMIT, _LIMIT, tl.PropagateNan.ALL)
        joined = (up + 1.0) * (gate / (1.0 + tl.exp(-gate * _ALPHA)))
    return joined
