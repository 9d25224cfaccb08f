"""Drafts of a divided vocabulary, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling.device.ranks import LoneRank, RankExchange
from sampling.speculative.drafting import DraftMethod, draw_drafts, kept_shard
from tests.sampling.ranks import on_counting_ranks
from tests.sampling.sharded_cases import own, sharded
from tests.sampling.speculative.drafting_cases import PARAMS, N, make_rows

DEPTH, NUM_DRAFTS = 1, 2
METHODS = ("greedy", "gumbel", "coupled")


class Drafted(NamedTuple):
    drafts: Tensor  # int32 [N]
    q: Tensor  # the rank's slots; 7 where nothing was kept


def columns_of(vocab_size: int) -> Tensor:
    """Every third id is drafted, in another order than the target's."""
    columns = torch.full((vocab_size,), -1, dtype=torch.int32)
    columns[::3] = torch.arange(len(columns[::3]), dtype=torch.int32).flip(0)
    return columns


def drafted(
    logits: Tensor,
    kind: str,
    method: DraftMethod,
    exchange: RankExchange,
    where: str = "cpu",
    wishes: list[dict[str, Any]] = PARAMS,
) -> Drafted:
    """What a rank drafts of logits [N, vocab_size]."""
    vocab_size = logits.shape[1]
    batch, rows = make_rows(vocab_size, where, wishes)
    rows.shard = shard = sharded(vocab_size, exchange)
    slots = torch.full((N + 1, NUM_DRAFTS, kept_shard(rows).width), 7.0, device=where)
    columns = None
    if kind == "shard":
        logits = own(logits, shard)
    elif kind == "reduced":
        columns = columns_of(vocab_size).to(where)
        logits = logits[:, : len(columns[::3])]
    drawn = draw_drafts(
        logits.to(where),
        batch,
        rows,
        DEPTH,
        method,
        draft_logits=slots if method == "gumbel" else None,
        columns=columns,
        shard=shard if kind == "shard" else None,
    )
    return Drafted(drawn.cpu(), slots.cpu())


def assert_alike(
    logits: Tensor,
    kind: str,
    method: DraftMethod,
    size: int,
    where: str = "cpu",
    wishes: list[dict[str, Any]] = PARAMS,
) -> list[int]:
    """Assert that all ranks draft as one does; returns the bytes of each message of a rank."""

    def work(exchange: RankExchange) -> Drafted:
        return drafted(logits, kind, method, exchange, where, wishes)

    alone, ranks = work(LoneRank()), on_counting_ranks(size, work)
    for rank, (found, _) in enumerate(ranks):
        assert torch.equal(found.drafts, alone.drafts), f"rank {rank} of {size}"
    together = torch.cat([found.q for found, _ in ranks], dim=2)
    assert torch.equal(together, alone.q)
    assert (alone.q[:N, DEPTH] != 7.0).all() == (method == "gumbel")
    assert len(set(map(tuple, (reported for _, reported in ranks)))) == 1
    return ranks[0][1]
