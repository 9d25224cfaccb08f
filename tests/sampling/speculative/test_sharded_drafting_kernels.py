"""As `test_sharded_drafting`, with kernels."""

from __future__ import annotations

import pytest
import torch

from sampling.device.triton_support import INTERPRETED
from sampling.noise import TILE
from sampling.speculative.drafting import DraftMethod
from tests.engine.kernels.where import DEVICES
from tests.sampling.bounds import watch_bounds
from tests.sampling.ranks import on_counting_ranks
from tests.sampling.speculative.drafting_cases import N, make_logits
from tests.sampling.speculative.sharded_drafts import METHODS, assert_alike, drafted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where a GPU is silent
VOCAB = 2 * TILE + 304
"""Less than there: the interpreter takes half a second for a tile of all rows."""


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize(
    ("kind", "method"), [*(("shard", method) for method in METHODS), ("reduced", "gumbel")]
)
def test_drafts_are_those_of_one_rank(kind: str, method: DraftMethod, where: str) -> None:
    logits = make_logits(VOCAB)
    logits[3] = logits[3].round()
    logits[4, :TILE] = -torch.inf
    reported = assert_alike(logits, kind, method, 2, where)
    assert reported == ([32 * N] if kind == "shard" else [])


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("method", ["gumbel", "coupled"])
def test_a_temperature_divides_once(method: DraftMethod, where: str) -> None:
    """Tiles of several ranks are as likely at any temperature as on one rank."""
    assert_alike(make_logits(VOCAB), "shard", method, 2, where, [{"temperature": 0.3}])


@pytest.mark.skipif(not INTERPRETED, reason="watches the interpreter")
@pytest.mark.parametrize("method", METHODS)
def test_bad_rows_are_alike_and_kernels_stay_inside_their_tensors(
    method: DraftMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    strayed = watch_bounds(monkeypatch)
    logits = make_logits(VOCAB)
    logits[2, TILE + 5], logits[5], logits[6] = torch.nan, torch.inf, -torch.inf
    ranks = on_counting_ranks(2, lambda exchange: drafted(logits, "shard", method, exchange))
    drafts = ranks[0][0].drafts
    assert torch.equal(ranks[1][0].drafts, drafts)
    assert ((drafts >= 0) & (drafts < VOCAB)).all()
    assert strayed == set()
