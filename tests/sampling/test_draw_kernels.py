"""The kernels of speculation's draws against their torch twins: the same noise, the same tokens.

A token may differ where two keys are closer than the error of the float32 tile sums, one draw in
100,000; the seeds here are fixed, so the outcome is fixed too.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import draw_kernels, draws, residual_kernels
from sampling.batch import SamplingBatch
from sampling.draw_kernels import Draft, Target
from sampling.draws import Distribution, draft_distribution
from sampling.filters import cut
from sampling.logit_kernels import Source
from sampling.noise import NoiseKey, Purpose
from sampling.params import SamplingParams
from sampling.race import Cut, tile_stats
from sampling.race_kernels import Cuts
from sampling.rows import SamplingRows
from sampling.tile_kernels import tile_pass
from sampling.triton_support import INTERPRETED

POSITION, DEPTH = 9, 3
TEMPERATURES = (0.0, 0.7, 1.0, 1.5, 0.3)
N = len(TEMPERATURES)

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs Triton's interpreter"
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, of infinities it computes
]


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="interpreter")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def make_logits(width: int, seed: int) -> Tensor:
    logits = torch.randn(N, width, generator=torch.Generator().manual_seed(seed)) * 2
    if width > 8:
        logits[:, width // 3 : width // 3 + seed] = -torch.inf
    return logits


def make_batch(width: int, device: torch.device) -> tuple[SamplingBatch, SamplingRows]:
    rows = SamplingRows(N, width, device, history=torch.zeros(N, 16, dtype=torch.int32).to(device))
    for i, temperature in enumerate(TEMPERATURES):
        params = SamplingParams(temperature=temperature)
        rows.add(i, params, seed=100 - 7 * i, choice=i, prompt_len=2, num_tokens=2)
    rows.flush()
    rows_np = np.arange(N, dtype=np.int32)
    index = torch.arange(N, dtype=torch.int32, device=device)
    positions = torch.full((N,), POSITION, dtype=torch.int64, device=device)
    return SamplingBatch(index, positions, rows_np, rows.needs(rows_np)), rows


def make_key(position: int) -> NoiseKey:
    seeds = torch.tensor([100 - 7 * i for i in range(N)])
    return NoiseKey(seeds, torch.full((N,), position), torch.arange(N))


def make_draft(logits: Tensor, device: torch.device) -> Draft:
    stats = tile_stats(logits, torch.ones(N, dtype=torch.float64))
    on_device = logits.to(device)
    return Draft(on_device, logits.shape[1], *(tensor.to(device) for tensor in stats))


@pytest.mark.parametrize("width", [1, 111, 2500])
def test_draft_draws(width: int, device: torch.device) -> None:
    logits, greedy = make_logits(width, 4), torch.tensor(TEMPERATURES) == 0.0
    batch, rows = make_batch(width, device)
    drawn, draft = draw_kernels.draft_draw(logits.to(device), batch, rows, greedy.to(device), DEPTH)
    twin = Distribution.of(logits, torch.where(greedy, 0.0, 1.0).double())
    assert drawn.tolist() == draws.draw(twin, make_key(POSITION), Purpose.DRAFT, DEPTH).tolist()
    expected = make_draft(logits, torch.device("cpu"))
    assert torch.equal(draft.maxima.cpu(), expected.maxima)
    torch.testing.assert_close(draft.masses.cpu(), expected.masses)


@pytest.mark.parametrize("has_draft", [True, False])
@pytest.mark.parametrize(("width", "filtered"), [(1, False), (111, True), (2500, False)])
def test_acceptance_and_recovery(
    width: int, filtered: bool, has_draft: bool, device: torch.device
) -> None:
    logits, draft_logits = make_logits(width, 5), make_logits(width, 6)
    temperature = torch.tensor(TEMPERATURES, dtype=torch.float64)
    x = draft_logits.argmax(1)
    last = first_tokens(logits, 20) if filtered else None
    p = Distribution.of(logits, temperature, last)
    q = draft_distribution(draft_logits) if has_draft else None
    kept = draws.accept(x, p, q, make_key(POSITION - DEPTH), DEPTH)
    recovered = draws.recovered_draw(x, p, q, make_key(POSITION))

    source = Source.of(logits.to(device), *make_batch(width, device))
    target = make_target(source, p, last)
    draft = make_draft(draft_logits, device) if has_draft else None
    depths = torch.full((N,), DEPTH, dtype=torch.int32, device=device)
    wanted = torch.tensor([True] * (N - 1) + [False], device=device)
    on_device = x.to(device)
    accepted = draw_kernels.accept(source, target, draft, on_device, depths, edited=False)
    assert accepted.tolist() == kept.tolist()
    drawn = residual_kernels.recovered_draw(source, target, draft, on_device, wanted, edited=False)
    assert drawn.tolist()[:-1] == recovered.tolist()[:-1]


def test_equal_distributions_recover_from_the_target(device: torch.device) -> None:
    logits = make_logits(2500, 5)
    x = logits.argmax(1)
    p, q = Distribution.of(logits, torch.ones(N, dtype=torch.float64)), draft_distribution(logits)
    recovered = draws.recovered_draw(x, p, q, make_key(POSITION))
    batch, rows = make_batch(2500, device)
    rows.floats.fill_(1.0)
    source = Source.of(logits.to(device), batch, rows)
    draft = make_draft(logits, device)
    target = Target(draft.maxima, draft.masses, *no_cuts(device))
    wanted = torch.ones(N, dtype=torch.bool, device=device)
    drawn = residual_kernels.recovered_draw(
        source, target, draft, x.to(device), wanted, edited=False
    )
    assert drawn.tolist()[1:] == recovered.tolist()[1:]  # row 0 is greedy on the device


def first_tokens(logits: Tensor, k: int) -> Cut:
    ones = torch.ones(N, dtype=torch.float64)
    nothing = torch.full((N,), -torch.inf, dtype=torch.float64)
    return cut(logits, ones, torch.full((N,), k), ones, nothing)


def no_cuts(device: torch.device) -> tuple[Tensor, Tensor]:
    values = torch.full((N,), -torch.inf, device=device)
    return values, torch.full((N,), 2**31 - 1, dtype=torch.int32, device=device)


def make_target(source: Source, p: Distribution, last: Cut | None) -> Target:
    stats = tile_pass(source, edited=False, peaked=False, reported=False)
    if last is None:
        return Target.of(stats, None)
    device = source.logits.device
    masses = tile_stats(p.logits, torch.where(p.temperature > 0, p.temperature, 1.0), last).masses
    cuts = Cuts(last.thresholds.to(device), last.last_ids.int().to(device))
    return Target.of(stats._replace(masses=masses.to(device)), cuts)
