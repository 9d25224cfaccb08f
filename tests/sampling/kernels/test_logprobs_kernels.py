"""The logprobs kernels against the torch path, in Triton's interpreter and on a GPU.

Nothing here is random in outcome: integers are equal, values agree to 1e-5.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.batch import LogprobsOutput, SamplingBatch
from sampling.device.triton_support import INTERPRETED
from sampling.filters.plain import cut
from sampling.kernels import logprobs as logprob_kernels
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import GIVEN_LANES
from sampling.kernels.tile_pass import tile_pass
from sampling.params import LogprobsMode, SamplingParams
from sampling.paths import torch_path
from sampling.paths.logprobs import gather_logprobs, prompt_kernels, prompt_logprobs
from sampling.race import Cut
from sampling.rows import SamplingRows
from sampling.vocab_shard import VocabShard

INF = float("inf")
MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "raw_logits",
    "processed_logprobs",
    "processed_logits",
)

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


def make_logits(n: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


def same(mine: LogprobsOutput, theirs: LogprobsOutput) -> None:
    mine = LogprobsOutput(*(tensor.cpu() for tensor in mine))
    assert len(theirs.ranks) > 0
    assert [column.shape for column in mine] == [column.shape for column in theirs]
    assert mine.ranks.tolist() == theirs.ranks.tolist()
    reported = theirs.top_logprobs > -INF
    assert torch.equal(mine.top_ids[reported], theirs.top_ids[reported])
    for name in ("chosen", "top_logprobs", "explicit"):
        got, want = getattr(mine, name), getattr(theirs, name)
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("width", "k"), [(1, 1), (7, 128), (111, 5), (2049, 0), (2049, 128)])
@pytest.mark.parametrize("normalized", [True, False])
def test_plain_rows(width: int, k: int, normalized: bool, device: torch.device) -> None:
    x = make_logits(2, width)
    tokens = torch.tensor([width // 2, width - 1])
    ids = torch.randint(-1, width + 1, (2, 5), generator=torch.Generator().manual_seed(1))
    mine = prompt_kernels(x.to(device), tokens.to(device), k, ids.to(device), normalized)
    same(mine, prompt_logprobs(x, tokens, num_top=k, explicit_ids=ids, normalized=normalized))


@pytest.mark.parametrize("count", [GIVEN_LANES - 1, GIVEN_LANES, 2 * GIVEN_LANES + 5])
def test_ids_are_reported_alike_however_many_there_are(count: int, device: torch.device) -> None:
    """Those beyond the lanes in a later turn of them, bit for bit as if they were given alone."""
    x, tokens = make_logits(2, 2500), torch.tensor([17, 2499])
    ids = torch.randint(-1, 2501, (2, count), generator=torch.Generator().manual_seed(count))
    x, tokens, ids = x.to(device), tokens.to(device), ids.to(device)
    mine = prompt_kernels(x, tokens, 5, ids, True)
    same(mine, prompt_logprobs(x.cpu(), tokens.cpu(), num_top=5, explicit_ids=ids.cpu()))
    parts = [prompt_kernels(x, tokens, 5, part, True) for part in torch.split(ids, 100, dim=1)]
    assert torch.equal(mine.explicit, torch.cat([part.explicit for part in parts], dim=1))
    assert torch.equal(mine.chosen, parts[0].chosen)
    assert torch.equal(mine.ranks, parts[0].ranks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ties_masks_and_strides(dtype: torch.dtype, device: torch.device) -> None:
    padded = torch.zeros(5, 3000, dtype=dtype)
    padded[:, :2500] = (make_logits(5, 2500) / 3).round()
    padded[:, 2500:] = 99.0
    x = padded[:, :2500]
    x[0] = 0.0
    x[1, ::2] = -0.0
    x[1, 1::2] = 0.0
    x[2, 3:2000] = -INF
    x[3] = -INF
    tokens = torch.tensor([2499, 1201, 2100, 4, 8])
    mine = prompt_kernels(padded.to(device)[:, :2500], tokens.to(device), 5, None, True)
    same(mine, prompt_logprobs(x, tokens, num_top=5))
    assert torch.equal(mine.chosen[4], mine.top_logprobs[4, 0]) == (int(mine.ranks[4]) == 1)


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_a_bad_row_stays_in_range_and_alone(bad: float, device: torch.device) -> None:
    x, tokens = make_logits(3, 2500).to(device), torch.tensor([1, 2, 3], device=device)
    clean = prompt_kernels(x, tokens, 5, None, True)
    x[1, 17:40] = bad
    out = prompt_kernels(x, tokens, 5, None, True)
    assert out.top_ids.shape == (3, 5)
    assert ((out.top_ids >= 0) & (out.top_ids < 2500)).all()
    for mine, theirs in zip(out, clean, strict=True):
        assert torch.equal(mine[::2], theirs[::2])


def test_every_mode_beside_the_others(device: torch.device) -> None:
    n, width = 10, 2100
    params = [
        SamplingParams(
            temperature=(0.0, 0.3, 1.7)[i % 3],
            top_k=(0, 3, 40)[i % 3],
            top_p=0.9 if i % 2 else 1.0,
            presence_penalty=0.5 * (i % 2),
            logit_bias={5: 4.0, 2050: -3.0} if i % 5 == 1 else {},
            logprobs=7 if i != 8 else None,
            logprobs_mode=MODES[i % 4],
        )
        for i in range(n)
    ]
    x = make_logits(n, width)
    ids = torch.randint(-1, width, (n, 3), generator=torch.Generator().manual_seed(1))
    batch, rows = make_batch(params, torch.device("cpu"))
    processed = torch_path.prepare(x, batch, rows)
    token_ids = torch_path.draw(x, batch, rows).token_ids  # and counts them
    cuts = make_cuts(processed.values, params)
    values, offsets = torch_path.reported_values(processed._replace(cut=cuts), batch, rows)
    mine = on_kernels(x, params, cuts, offsets, token_ids, ids, device)
    expected = gather_logprobs(values, offsets, token_ids, num_top=7, explicit_ids=ids)
    expected = expected._replace(kept=torch.arange(len(values)).float())
    reporting = torch.arange(n) != 8
    same(
        LogprobsOutput(*(tensor.cpu() for tensor in mine)).at(reporting),
        expected.at(reporting),
    )


def make_batch(
    params: list[SamplingParams], device: torch.device
) -> tuple[SamplingBatch, SamplingRows]:
    n = len(params)
    rows = SamplingRows(n, 2100, device, history=torch.full((n, 16), 7, dtype=torch.int32))
    rows.history = rows.history.to(device)
    for i, one in enumerate(params):
        rows.add(i, one, seed=i, choice=0, prompt_len=2, num_tokens=6)
    rows.flush()
    rows_np = np.arange(n, dtype=np.int32)
    index = torch.arange(n, dtype=torch.int32, device=device)
    positions = torch.full((n,), 6, dtype=torch.int64, device=device)
    return SamplingBatch(index, positions, rows_np, rows.needs(rows_np)), rows


def make_cuts(processed: Tensor, params: list[SamplingParams]) -> Cut:
    """The cuts of each row's filters; greedy rows keep everything."""
    temperature = torch.tensor([one.temperature or 1.0 for one in params], dtype=torch.float64)
    top_k = torch.tensor([0 if one.greedy else one.top_k for one in params])
    top_p = torch.tensor([1.0 if one.greedy else one.top_p for one in params]).double()
    return cut(processed, temperature, top_k, top_p, torch.full_like(top_p, -INF))


def on_kernels(
    x: Tensor,
    params: list[SamplingParams],
    cuts: Cut,
    offsets: Tensor,
    token_ids: Tensor,
    ids: Tensor,
    device: torch.device,
) -> LogprobsOutput:
    source = Source.of(x.to(device), *make_batch(params, device))
    return logprob_kernels.gather_logprobs(
        source,
        tile_pass(source, edited=True, peaked=False, reported=True),
        Cut(cuts.thresholds.to(device), cuts.last_ids.int().to(device)),
        offsets.to(device),
        torch.arange(len(x)).float().to(device),
        token_ids.to(device),
        num_top=7,
        explicit_ids=ids.to(device),
        edited=True,
        shard=VocabShard.whole(x.shape[1]),
    )
