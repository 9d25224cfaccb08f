"""The prefill kernel against float64, and the same bits however a step is made up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.prefill_attention import Tiling, prefill_tiles
from engine.memory.pages import FP8_CACHE
from tests.engine.kernels.paged_cases import DTYPES, SPEC, SPECS, STEPS, Case, lie_apart
from tests.engine.kernels.where import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("step", STEPS)
def test_kernel_equals_float64(step: str, name: str, dtype: torch.dtype, device: str) -> None:
    Case(SPECS[name], STEPS[step], dtype, device).check()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [16, 40, 64, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 1), (71, 1)])
def test_shapes(heads: tuple[int, int], head_dim: int, device: str) -> None:
    spec = AttentionSpec(*heads, head_dim, scale=head_dim**-0.5)
    Case(spec, [(9, 9), (70, 3), (90, 40)], torch.float16, device).check()


@pytest.mark.parametrize("device", DEVICES)
def test_queries_may_lie_apart(device: str) -> None:
    """As those of a view of a wider product do; what is between them is not theirs."""
    case = Case(SPEC, [(70, 3), (20, 9)], torch.float32, device)
    wanted = case.attend()
    case.queries = lie_apart
    assert torch.equal(case.attend(), wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_neighbours_and_chunks_change_no_bit(name: str, dtype: torch.dtype, device: str) -> None:
    case = Case(SPECS[name], [(130, 130), (77, 20), (200, 170)], dtype, device)
    together = case.attend()
    first = 0
    for row, (_, queries) in enumerate(case.rows):
        own = together[first : first + queries]
        assert torch.equal(case.attend([row]), own)
        for cut in (1, 13, queries - 1):  # chunks whose tiles begin at any token
            chunks = [case.attend([row], slice(0, cut)), case.attend([row], slice(cut, None))]
            assert torch.equal(torch.cat(chunks), own)
        first += queries


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SPECS)
def test_tiles_of_no_tokens_change_nothing(name: str, device: str) -> None:
    case = Case(SPECS[name], [(9, 3), (70, 20)], torch.float16, device)
    wanted = case.attend()
    padded = case.attend(padding=5)
    assert torch.equal(padded[:-5], wanted)
    assert padded[-5:].isnan().all()  # as it was: nothing is written


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["plain", "all"])
def test_float8_is_read_times_its_scales(name: str, device: str) -> None:
    """As from a cache of what it stands for, whose numbers float16 holds exactly."""
    case = Case(SPECS[name], [(90, 40), (70, 3)], torch.float16, device)
    scales = torch.tensor([[0.5, 2.0], [4.0, 0.25]])
    stored = case.pages.nan_to_num().to(FP8_CACHE)
    case.pages = (stored.float() * scales[:, None, :, None]).half()
    wanted = case.attend()
    case.pages = stored
    assert torch.equal(case.attend(scales=scales), wanted)


def test_tiles_with_the_most_keys_come_first() -> None:
    starts, lengths = np.array([0, 3, 73], dtype=np.int32), np.array([900, 70], dtype=np.int32)
    tiling = Tiling(queries=128, keys=64, num_warps=4, num_stages=3)
    tiles = prefill_tiles(starts, lengths, 60, 4, tiling)
    width = tiling.queries // 4
    assert tiles.tolist() == [
        [0, 0, 3, 897],
        [60, 3 + 2 * width, 70 - 2 * width, 2 * width],
        [60, 3 + width, width, width],
        [60, 3, width, 0],
    ]
