from __future__ import annotations

import pytest
import torch

from engine.kernels.recurrent import reference
from engine.kernels.recurrent.gated_norm import GatedNorm, gated_norm_torch, gated_norm_triton
from tests.engine.kernels.recurrent.calls import Compute
from tests.engine.kernels.where import DEVICES

WAYS = [
    pytest.param(gated_norm_torch, "cpu", id="twin"),
    *(pytest.param(gated_norm_triton, *each.values, marks=each.marks) for each in DEVICES),
]


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("by_group", [False, True])
def test_gated_norm(
    by_group: bool,
    sigmoid: bool,
    gate_first: bool,
    dtype: torch.dtype,
    compute: Compute,
    device: str,
) -> None:
    groups, width = 3, 20
    x = torch.randn(5, groups, width, device=device).to(dtype)
    product = torch.randn(5, 2 + groups * width, device=device).to(dtype)
    gate = product[:, 2:].view(5, groups, width)
    shape = (groups, width) if by_group else (width,)
    weight = torch.randn(shape, device=device).to(dtype)
    wanted = reference.gated_norm(x, gate, weight, 1e-5, gate_first=gate_first, sigmoid=sigmoid)
    out = compute(GatedNorm(weight, 1e-5, gate_first, sigmoid), x, gate)
    assert out.dtype == dtype
    # Rounded once (Triton's interpreter cuts digits off); the float32 sum of 20 squares and four
    # more operations each lose half an eps.
    rtol = torch.finfo(dtype).eps + 12 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(out.double(), wanted.flatten(1), rtol=rtol, atol=1e-7)
