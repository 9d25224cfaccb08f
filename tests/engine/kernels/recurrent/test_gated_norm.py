from __future__ import annotations

import pytest
import torch

from engine.kernels.recurrent import reference
from engine.kernels.recurrent.gated_norm import (
    ENOUGH,
    GatedNorm,
    gated_norm_torch,
    gated_norm_triton,
    norm_shape,
)
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("groups", "width"), [(48, 128), (5, 96), (8, 512), (2, 1024)])
def test_bits_do_not_depend_on_the_tokens_beside(groups: int, width: int, device: str) -> None:
    """Nor on the launch's shape, which is another where there are many."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    few, many = (norm_shape(count, width, dtype.itemsize) for count in (groups, 1 << 20))
    assert few != many or width > 512
    num_tokens = -(-many.groups * ENOUGH // groups) if device == "cuda" else 3
    x, gate = torch.randn(2, num_tokens, groups, width, device=device).to(dtype)
    norm = GatedNorm(torch.randn(width, device=device).to(dtype), 1e-5)
    with pytest.MonkeyPatch.context() as patch:
        if device == "cpu":
            patch.setattr("engine.kernels.recurrent.gated_norm.ENOUGH", 0)
        together = gated_norm_triton(norm, x, gate)
    for token in (0, num_tokens - 1):
        own = slice(token, token + 1)
        assert torch.equal(gated_norm_triton(norm, x[own], gate[own])[0], together[token])
