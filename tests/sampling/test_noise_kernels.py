"""The kernels' exponentials, held against 60 digits as the host's are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sampling.device.triton_support import jit, tl
from sampling.noise import exponential
from tests.sampling.exponentials import ARGUMENTS, worst_error
from tests.sampling.kernel_cases import DEVICES, pytestmark  # noqa: F401

N = 512


@jit
def _exponential_kernel(u, out, n: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, n)
    tl.store(out + lane, exponential(tl.load(u + lane)))


@pytest.mark.parametrize("device", DEVICES)
def test_exponentials_lose_no_digits_down_to_the_smallest_uniform(device: str) -> None:
    """The bound is the noise contract's, and a plain log(1 - u) is infinitely far beyond it."""

    def drawn(u: Tensor) -> Tensor:
        padded = torch.cat((u, u.new_full((N - len(u),), 0.5))).to(device)
        out = torch.empty_like(padded)
        _exponential_kernel[(1,)](padded, out, n=N, enable_fp_fusion=False)
        return out[: len(u)].cpu()

    assert len(ARGUMENTS) <= N
    assert worst_error(drawn) < 2.0**-50
