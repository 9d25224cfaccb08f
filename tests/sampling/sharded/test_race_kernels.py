"""Ranks' candidates and what is decided among them: bit for bit what one rank's kernels draw.

Ranks are played one after another: each leaves its candidates, then all are decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling.batch import SamplerOutput
from sampling.device.ranks import LoneRank
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.paths import triton_path
from sampling.vocab_shard import VocabShard
from tests.engine.kernels.where import DEVICES
from tests.sampling.steps import Host, Request, make_logits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where a GPU is silent

VOCAB = 5 * TILE + 300
WISHES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"temperature": 1e-9},
    {"temperature": 1e-40},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": -0.4},
    {"logit_bias": {0: 9.0, TILE: 8.0, VOCAB - 1: 9.5}},
    {"logit_bias": {3 * TILE: 50.0}, "temperature": 0.0},
    {"allowed_token_ids": (5, TILE - 1, TILE, 4 * TILE + 3)},
    {"allowed_token_ids": (VOCAB - 1,)},
    {"bad_words": ((7,), (2, 3, 4100)), "temperature": 0.0},
    {"min_tokens": 3, "stop_token_ids": (TILE + 1, 0)},
]


class HeardError(Exception):
    """A rank has reported its part, and is not answered yet."""


class Turn(LoneRank):
    """A rank that is played when others are not: it leaves what it sends, or is sent all."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.reported: Tensor | None = None
        self.answer: Tensor | None = None

    def all_gather(self, values: Tensor) -> Tensor:
        if self.answer is None:
            self.reported = values
            raise HeardError
        return self.answer


def draw(
    wishes: Sequence[dict[str, Any]],
    logits: Tensor,
    where: str,
    exchange: LoneRank,
    allowed: Sequence[int] | None = None,
) -> tuple[SamplerOutput, Tensor]:
    """What one rank draws, and the counts that it keeps."""
    host = Host(len(wishes), VOCAB, where=where)
    if exchange.size > 1:
        host.rows.shard = VocabShard.split(VOCAB, exchange)
    for row, wish in enumerate(wishes):
        params = SamplingParams(**(wish | {"constrained": allowed is not None}))
        request = Request(params, seed=row * 77 - 5, choice=row % 2, allowed=allowed)
        request.tokens += [9, 4100, 9, 2, 3]
        host.admit(row, request)
    host.rows.flush()
    batch, shard = host.batch(range(len(wishes))), host.rows.shard
    own = logits[:, shard.first : shard.first + shard.width].clone().to(where)
    return triton_path.draw(own, batch, host.rows), host.rows.counts.words


def assert_alike(logits: Tensor, where: str, wishes: Sequence[dict[str, Any]], **kw: Any) -> Tensor:
    """Assert that two and four ranks draw what one does; returns the tokens."""
    (alone, counts) = draw(wishes, logits, where, LoneRank(), **kw)
    for size in (2, 4):
        ranks = [Turn(rank, size) for rank in range(size)]
        for rank in ranks:
            with pytest.raises(HeardError):
                draw(wishes, logits, where, rank, **kw)
        reported = torch.stack([rank.reported for rank in ranks if rank.reported is not None])
        assert reported.nbytes == size * len(wishes) * 32, "32 bytes a row are reported"
        for rank in ranks:
            rank.answer = reported
            drawn, counted = draw(wishes, logits, where, rank, **kw)
            assert torch.equal(drawn.token_ids, alone.token_ids)
            assert torch.equal(drawn.bad, alone.bad)
            assert torch.equal(counted, counts)
    return alone.token_ids


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("decimals", [None, 1], ids=["smooth", "ties"])
def test_draws_are_those_of_one_rank(decimals: int | None, where: str) -> None:
    logits = make_logits(len(WISHES), VOCAB, seed=3)
    if decimals is not None:
        logits = logits.round(decimals=decimals)
    tokens = assert_alike(logits, where, WISHES)
    assert len(set((tokens // TILE).tolist())) > 3, "tokens of several shards were drawn"


@pytest.mark.parametrize("where", DEVICES)
def test_of_equal_logits_the_lowest_id_is_greedy(where: str) -> None:
    logits = make_logits(3, VOCAB, seed=9)
    for row, ids in enumerate(((40, 3 * TILE), (TILE - 1, TILE), (2 * TILE + 9, VOCAB - 1))):
        logits[row, list(ids)] = 30.0
    tokens = assert_alike(logits, where, [{"temperature": 0.0}] * 3)
    assert tokens.tolist() == [40, TILE - 1, 2 * TILE + 9]


@pytest.mark.gpu
def test_many_draws_are_those_of_one_rank() -> None:
    """Rows enough that a wrong order of ranks or a wrong key would show."""
    wishes: list[dict[str, Any]] = [{"temperature": 0.2 + row / 100} for row in range(400)]
    assert_alike(make_logits(400, VOCAB, seed=8), "cuda", wishes)


@pytest.mark.parametrize("where", DEVICES)
def test_plain_rows_alone_are_those_of_one_rank(where: str) -> None:
    """Without edits in the batch another variant of the kernels runs."""
    assert_alike(make_logits(6, VOCAB, seed=4), where, WISHES[:6])


@pytest.mark.parametrize("where", DEVICES)
def test_grammars_mask_each_shard_by_its_part(where: str) -> None:
    allowed = (3, TILE + 33, 3 * TILE - 1, VOCAB - 2)
    logits = make_logits(12, VOCAB, seed=5)
    tokens = assert_alike(logits, where, [{"temperature": 3.0}] * 12, allowed=allowed)
    assert set(tokens.tolist()) <= set(allowed)


@pytest.mark.parametrize("where", DEVICES)
def test_a_bad_row_is_bad_on_every_rank(where: str) -> None:
    logits = make_logits(6, VOCAB, seed=6)
    logits[0, 5 * TILE] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, : 4 * TILE] = -torch.inf  # all that some ranks hold
    wishes: list[dict[str, Any]] = [{}] * 4 + [{"allowed_token_ids": (TILE,)}] * 2
    logits[5, TILE] = -torch.inf
    tokens = assert_alike(logits, where, wishes)
    assert tokens.tolist()[:3] == [0, 0, 0]
    assert_alike(logits[:4], where, [{}] * 4)
