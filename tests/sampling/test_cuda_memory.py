"""A native draw keeps a few numbers a tile beside the logits, never a copy of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sampling.filters.candidates import MAX_BLOCKS, MAX_CANDIDATES
from sampling.filters.cut_state import NOTED
from sampling.kernels.top_lists import CHUNK
from sampling.noise import TILE
from sampling.paths import triton_path
from tests.sampling.steps import make_batch

NUM_ROWS = 256
SMALL = {"top_k": 50, "top_p": 0.95, "min_p": 0.01}
FILTERED = 4 * NOTED + 4 * (MAX_BLOCKS + 2 * MAX_CANDIDATES) + 64
"""Bytes a filtered row takes whatever its vocabulary: candidates and what is noted of them."""
ROUNDING = 64 * 512
"""The allocator rounds each tensor up to 512 bytes."""


@pytest.mark.gpu
@pytest.mark.parametrize("vocab_size", [32_768, 151_936])
@pytest.mark.parametrize(
    ("wish", "bytes_a_tile", "bytes_a_row"),
    [
        ({}, 16, 64),
        ({"temperature": 0.0}, 16, 64),
        ({"presence_penalty": 0.5, "logit_bias": {3: 1.0}}, 16, 64),
        (SMALL, 512, FILTERED),
        ({"top_p": 0.95}, 512, FILTERED),
        ({"top_k": 400, "top_p": 0.9}, 512, FILTERED),
        (
            SMALL | {"logprobs": 20, "logprobs_mode": "processed_logprobs"},
            512,
            FILTERED + 20 * 4 * TILE // CHUNK + 20 * 8,
        ),
    ],
)
def test_extra_memory(
    wish: dict[str, Any], bytes_a_tile: int, bytes_a_row: int, vocab_size: int
) -> None:
    wishes = [wish | {"seed": row} for row in range(NUM_ROWS)]
    batch, rows = make_batch(wishes, torch.device("cuda"), vocab_size)
    logits = torch.randn(NUM_ROWS, vocab_size, device="cuda")
    triton_path.draw(logits, batch, rows)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    triton_path.draw(logits, batch, rows)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    num_tiles = -(-vocab_size // TILE)
    assert extra <= NUM_ROWS * (num_tiles * bytes_a_tile + bytes_a_row) + ROUNDING
    assert extra < logits.nbytes / 2
