"""Drafts drawn by several ranks, each from its ids: those of one rank, with its part of q.

In plain torch; `test_sharded_drafting_kernels` does the same with kernels. Within a rank keys are
rounded from another highest logit than on one rank: a draft could differ with odds of 2**-44, and
the seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch

from sampling.device.ranks import LoneRank
from sampling.noise import TILE
from sampling.speculative.drafting import DraftMethod
from tests.sampling.ranks import on_counting_ranks
from tests.sampling.speculative.drafting_cases import N, make_logits, make_rows
from tests.sampling.speculative.sharded_drafts import (
    METHODS,
    assert_alike,
    drafted,
)

VOCAB = 5 * TILE + 304
KINDS = ("shard", "whole", "reduced")
"""Logits of a rank's ids, of all on every rank, and of a reduced vocabulary on every rank."""


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_one_rank(kind: str, method: DraftMethod, size: int) -> None:
    logits = make_logits(VOCAB)
    logits[3] = logits[3].round()  # equal ones on several ranks: the lowest id is drafted
    logits[4, : 4 * TILE] = -torch.inf  # all that some ranks hold
    reported = assert_alike(logits, kind, method, size)
    if kind != "shard":
        assert reported == []
        return
    batch, rows = make_rows(VOCAB)
    random = int((rows.floats[batch.rows, 0] > 0).sum())
    of_greedy, of_random = [16 * N], [4 * random, 16 * random]
    assert reported == (of_greedy if method == "greedy" else of_greedy + of_random)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_row_drafts_the_same_on_every_rank(method: DraftMethod, bad: float) -> None:
    logits = make_logits(VOCAB)
    logits[2, 3 * TILE + 5], logits[5] = bad, bad
    alone = drafted(make_logits(VOCAB), "shard", method, LoneRank())
    ranks = on_counting_ranks(2, lambda exchange: drafted(logits, "shard", method, exchange))
    drafts = ranks[0][0].drafts
    assert torch.equal(ranks[1][0].drafts, drafts)
    assert ((drafts >= 0) & (drafts < VOCAB)).all()
    others = ~torch.isin(torch.arange(N), torch.tensor([2, 5]))
    assert torch.equal(drafts[others], alone.drafts[others])
