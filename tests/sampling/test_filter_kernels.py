"""The filters' kernels equal the filters in plain torch, whichever stage decides a row.

Counts are exact, so the kept sets must be equal. A top-p cuts by float32 masses: it may differ
where a token's cumulated mass is within MASS_ERROR of p, which these logits avoid.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import bracket_kernels, cut_kernels, filter_kernels, search_kernels, torch_edits
from sampling.batch import SamplingBatch
from sampling.filters import cut
from sampling.logit_kernels import Source
from sampling.params import SamplingParams
from sampling.race import MASS_ERROR, Cut, tile_stats
from sampling.rows import FILTERED, LOG_MIN_P, TEMPERATURE, TOP_K, TOP_P, SamplingRows
from sampling.tile_kernels import tile_pass
from sampling.triton_support import INTERPRETED

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs Triton's interpreter"
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, where a GPU is silent
]
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="interpreter")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def normal(n: int, width: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(width)) * 3


DISTRIBUTIONS: dict[str, Callable[[int, int], Tensor]] = {
    "normal": normal,
    "bfloat16": lambda n, width: normal(n, width).bfloat16(),
    "equal": lambda n, width: torch.full((n, width), 1.5),
    "nearly equal": lambda n, width: normal(n, width) / 300,
    "two values": lambda n, width: (normal(n, width) > 0).float(),
    "two heads": lambda n, width: normal(n, width).index_fill(1, torch.tensor([7, 70]), 25.0),
    "signed zeros": lambda n, width: normal(n, width).round() * 0.0,
}
ROWS = [
    SamplingParams(top_k=50, temperature=0.7),
    SamplingParams(top_k=50, top_p=0.95, min_p=0.01),
    SamplingParams(top_p=0.95),
    SamplingParams(top_p=0.5, temperature=2.0),
    SamplingParams(top_k=600),
    SamplingParams(top_k=900, top_p=0.8, temperature=2.0),
    SamplingParams(min_p=0.001, temperature=3.0),
    SamplingParams(min_p=0.001, top_p=0.9, temperature=3.0),
    SamplingParams(top_k=1),
    SamplingParams(top_p=1e-9),
    SamplingParams(top_k=20, top_p=0.9, temperature=1e-8),
    SamplingParams(top_p=0.9, frequency_penalty=0.5, logit_bias={1: 3.0}),
    SamplingParams(),
    SamplingParams(temperature=0.0),
]


def make_batch(width: int, device: torch.device) -> tuple[SamplingBatch, SamplingRows]:
    n = len(ROWS)
    history = torch.arange(8, dtype=torch.int32).expand(n, -1).contiguous().to(device)
    rows = SamplingRows(n, width, device, history=history)
    for row, params in enumerate(ROWS):
        rows.add(row, params, seed=row, choice=0, prompt_len=2, num_tokens=8)
    rows.flush()
    rows_np = np.arange(n, dtype=np.int32)
    batch = SamplingBatch(
        torch.arange(n, dtype=torch.int32, device=device),
        torch.full((n,), 8, device=device),
        rows_np,
        rows.needs(rows_np),
    )
    return batch, rows


def wanted_cuts(values: Tensor, rows: SamplingRows) -> Cut:
    """By the filters in plain torch; neutral for rows without."""
    floats, ints = rows.floats, rows.ints
    temperature = floats[:, TEMPERATURE].where(floats[:, TEMPERATURE] > 0, 1.0)
    cuts = cut(values, temperature, ints[:, TOP_K], floats[:, TOP_P], floats[:, LOG_MIN_P])
    neutral = torch.from_numpy(rows.flags_np & FILTERED == 0)
    cuts.thresholds[neutral] = -torch.inf
    return cuts


def check(logits: Tensor, device: torch.device, *, forced: bool) -> int:
    """Compare kept sets and masses; how many rows were left to the last resort."""
    width = logits.shape[1]
    batch, rows = make_batch(width, torch.device("cpu"))
    values = torch_edits.process(logits.float(), batch, rows)
    wanted = wanted_cuts(values, rows)
    temperature = rows.floats[:, TEMPERATURE].where(rows.floats[:, TEMPERATURE] > 0, 1.0)
    masses = tile_stats(values, temperature, wanted).masses

    batch, rows = make_batch(width, device)
    source = Source.of(logits.to(device), batch, rows)
    stats = tile_pass(source, edited=True, peaked=True, reported=False)
    cuts, scratch = filter_kernels.head(source, stats, edited=True)
    if forced:
        scratch.undecided.copy_(torch.from_numpy(rows.flags_np & FILTERED != 0))
    for second in (False, True):
        if forced:
            break
        brackets = bracket_kernels.bracket(source, stats, cuts, scratch, edited=True, second=second)
        cut_kernels.cut_within(source, stats, cuts, scratch, brackets, edited=True, second=second)
    left = int(scratch.undecided.count_nonzero())
    search_kernels.search(source, stats, cuts, scratch, edited=True)
    ours = Cut(cuts.thresholds.cpu(), cuts.last_ids.cpu().long())
    ids = torch.arange(width)
    differing = (ours.keeps(values, ids) != wanted.keeps(values, ids)).sum(1)
    assert not differing.any(), differing.tolist()
    error = (stats.masses.cpu() - masses).abs() / masses.clamp(min=1e-30)
    assert error.max() < 2 * MASS_ERROR
    return left


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_stage_cuts_where_a_sort_does(name: str, device: str) -> None:
    widths = (80, 1300) if device == "cpu" else (80, 1300, 9000, 151936)
    if name == "normal":
        widths += (9000,)  # beyond what a bracket looks at altogether
    for width in widths:
        left = check(DISTRIBUTIONS[name](len(ROWS), width), torch.device(device), forced=False)
        if name == "normal":  # the quick stages decide all but unlucky rows
            assert left <= 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["normal", "two values"])
def test_the_last_resort_alone_cuts_where_a_sort_does(name: str, device: str) -> None:
    width = 1300 if device == "cpu" else 151936
    logits = DISTRIBUTIONS[name](len(ROWS), width)
    check(logits, torch.device(device), forced=True)
