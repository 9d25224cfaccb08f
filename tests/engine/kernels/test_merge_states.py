from __future__ import annotations

import math

import pytest
import torch

from engine.kernels.merge_states import merge_states_torch, merge_states_triton
from tests.engine.kernels.where import DEVICES

DTYPES = [torch.float32, torch.bfloat16]


def attend(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 attention of [T, H, keys] over [T, H, keys, D], and its log in base 2."""
    out = (scores.softmax(-1)[..., None] * values).sum(-2)
    return out, scores.logsumexp(-1) / math.log(2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_parts_make_the_whole(dtype: torch.dtype) -> None:
    scores = 4 * torch.randn(5, 3, 40, dtype=torch.float64)
    scores[1, :, 7:] = -torch.inf  # its second part sees nothing
    values = torch.randn(5, 3, 40, 16, dtype=torch.float64)
    want, _ = attend(scores, values)
    (a, log_a), (b, log_b) = (attend(scores[..., s], values[..., s, :])
                              for s in (slice(0, 7), slice(7, 40)))  # fmt: skip
    out = torch.empty(5, 3, 16, dtype=dtype)
    merge_states_torch(a.to(dtype), log_a.float(), b.nan_to_num().to(dtype), log_b.float(), out)
    # Each part and the result are rounded once.
    close = 2 * torch.finfo(dtype).eps * values.abs().max().item()
    torch.testing.assert_close(out.double(), want, rtol=0, atol=close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 8), (5, 3, 40), (33, 2, 128)])
def test_kernel(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    a, b = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    log_a, log_b = (20 * torch.randn(shape[:2], device=device) for _ in range(2))
    log_b[0, 0] = -torch.inf
    outs = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(2)]
    merge_states_triton(a, log_a, b, log_b, outs[0])
    merge_states_torch(a, log_a, b, log_b, outs[1])
    torch.testing.assert_close(outs[0], outs[1], rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
