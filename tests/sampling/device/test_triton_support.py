"""Where kernels run, and what replaces them without Triton."""

from __future__ import annotations

import pytest
import torch

from sampling.device import triton_support
from sampling.device.triton_support import (
    HAS_TRITON,
    INTERPRETED,
    constexpr,
    jit,
    kernels_run_on,
    padded_lanes,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_kernels_run_on_cuda_and_in_the_interpreter() -> None:
    assert kernels_run_on(CPU) == INTERPRETED
    assert kernels_run_on(CUDA) == HAS_TRITON


def test_without_triton_modules_of_kernels_still_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "HAS_TRITON", False)

    def kernel(x: int) -> int:
        return x + 1

    assert jit(kernel) is kernel
    assert jit(do_not_specialize=["x"])(kernel) is kernel
    assert constexpr(3) == 3
    assert not kernels_run_on(CUDA)


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
def test_lanes_are_a_power_of_two_and_at_least_two() -> None:
    wanted = {1: 2, 2: 2, 3: 4, 4: 4, 5: 8, 149: 256, 256: 256}
    assert {count: padded_lanes(count) for count in wanted} == wanted
