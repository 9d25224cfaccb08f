"""Whatever rows ask for and whatever their logits are, 2, 4 and 8 ranks draw what one does.

Rows are made at random, from fixed seeds: parameters of every kind beside one another, over
logits with ties across the borders of ranks, without most of their ids, or with none that can be
drawn. Ranks are threads (`tests.sampling.ranks`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling.device.ranks import LoneRank, RankExchange
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.paths import torch_path
from sampling.paths.listed_logprobs import listed_logprobs
from sampling.paths.logprobs import prompt_logprobs
from sampling.speculative.verification import Method, verify
from tests.sampling.ranks import on_counting_ranks, on_ranks
from tests.sampling.sharded_cases import own, same, sharded
from tests.sampling.speculative.speculated_steps import random_step
from tests.sampling.steps import Host, Request, make_logits

VOCAB = 9 * TILE + 500
SIZES = (2, 4, 8)  # of ten tiles: eight ranks have one or two
NUM_ROWS = 16
BORDERS = (TILE, 2 * TILE, 5 * TILE, 7 * TILE)
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


def some_ids(rng: random.Random, count: int) -> tuple[int, ...]:
    """Ids at random and on both sides of borders."""
    near = [border - rng.randrange(2) for border in BORDERS]
    return (*rng.sample(range(VOCAB), count - 1), rng.choice(near))


def random_wish(rng: random.Random) -> dict[str, Any]:
    """Parameters of a request; each is there in about half of them."""
    kinds: dict[str, Callable[[], Any]] = {
        "temperature": lambda: rng.choice((0.0, 1e-40, 0.2, 0.9, 4.0)),
        "top_k": lambda: rng.choice((1, 2, 50, 128, 129, TILE, 3 * TILE + 7)),
        "top_p": lambda: rng.choice((1e-6, 0.3, 0.9, 0.9999)),
        "min_p": lambda: rng.choice((1e-9, 0.02, 0.9)),
        "presence_penalty": lambda: rng.uniform(-2, 2),
        "frequency_penalty": lambda: rng.uniform(-2, 2),
        "repetition_penalty": lambda: rng.uniform(0.5, 2),
        "logit_bias": lambda: dict.fromkeys(some_ids(rng, 4), rng.uniform(-20, 20)),
        "bad_words": lambda: ((some_ids(rng, 1)[0],), (2, 3, some_ids(rng, 1)[0])),
        "logprobs": lambda: rng.choice((0, 1, 20, 128)),
        "logprob_token_ids": lambda: some_ids(rng, 3),
        "kept_logprob": lambda: True,
        "logprobs_mode": lambda: rng.choice(MODES),
    }
    wish = {name: make() for name, make in kinds.items() if rng.random() < 0.4}
    if rng.random() < 0.15:
        wish["allowed_token_ids"] = some_ids(rng, 5)
    if rng.random() < 0.15:
        wish |= {"min_tokens": 9, "stop_token_ids": some_ids(rng, 2)}
    return wish


def random_logits(rng: random.Random) -> Tensor:
    """Rows of logits, no two of which are made alike."""
    logits = make_logits(NUM_ROWS, VOCAB, seed=rng.randrange(2**31))
    for row in logits:
        row *= rng.choice((0.0, 1e-3, 1.0, 4.0, 300.0))
        if rng.random() < 0.5:
            row.copy_(row.round(decimals=rng.choice((0, 1))))  # ties
        if rng.random() < 0.3:
            low = rng.randrange(10) * TILE
            row[low : low + rng.randrange(1, 8) * TILE] = -torch.inf
        if rng.random() < 0.1:
            row[rng.randrange(VOCAB)] = rng.choice((torch.nan, torch.inf))
        if rng.random() < 0.05:
            row.fill_(-torch.inf)
    return logits


def drawn(wishes: list[dict[str, Any]], logits: Tensor, exchange: RankExchange) -> Any:
    """What a rank draws, by the rows that may be read, and the counts it keeps."""
    host = Host(NUM_ROWS, VOCAB)
    host.rows.shard = sharded(VOCAB, exchange)
    for row, wish in enumerate(wishes):
        request = Request(SamplingParams(**wish), seed=row * 77 - 5, choice=row % 2)
        request.tokens += [9, 4100, 9, 2, 3]
        host.admit(row, request)
    host.rows.flush()
    found = torch_path.draw(own(logits, host.rows.shard), host.batch(range(NUM_ROWS)), host.rows)
    if found.logprobs is not None:  # undefined in rows that do not ask for them, and in bad ones
        asks = [
            bool(wish.keys() & {"logprobs", "logprob_token_ids", "kept_logprob"}) for wish in wishes
        ]
        reported = (torch.tensor(asks) & (found.bad == 0)).nonzero().flatten()
        found = found._replace(logprobs=found.logprobs.at(reported))
    return found, host.rows.counts.words


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_every_kind_are_drawn_as_by_one_rank(seed: int) -> None:
    rng = random.Random(seed)
    wishes, logits = [random_wish(rng) for _ in range(NUM_ROWS)], random_logits(rng)
    alone = drawn(wishes, logits, LoneRank())
    assert (alone[0].bad == 0).sum() > NUM_ROWS // 2
    for size in SIZES:
        for rank, found in enumerate(on_ranks(size, lambda e: drawn(wishes, logits, e))):
            assert same(found, alone), f"rank {rank} of {size}"


METHODS: tuple[Method, ...] = ("standard", "coupled")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_drafts_of_every_kind_are_verified_as_by_one_rank(seed: int, method: Method) -> None:
    rng = random.Random(100 + seed)
    wishes = [random_wish(rng) for _ in range(8)]
    has_logits = method == "standard" and seed > 0
    step = random_step(wishes, 8, 3, VOCAB, has_draft_logits=has_logits, likely=0.9)

    def work(exchange: RankExchange) -> Any:
        batch, rows, drafts = step.make(torch.device("cpu"), sharded(VOCAB, exchange))
        found = verify(own(step.logits, rows.shard), batch, rows, drafts, method, None)
        return found._replace(logprobs=None), rows.counts.words

    alone = work(LoneRank())
    for size in SIZES:
        for rank, found in enumerate(on_ranks(size, work)):
            assert same(found, alone), f"rank {rank} of {size}"


def sent(work: Callable[[RankExchange], Any]) -> int:
    """The most bytes that one of two ranks sends."""
    return max(sum(reported) for _, reported in on_counting_ranks(2, work))


def test_verification_tells_no_logits() -> None:
    """Of each verified position some hundred bytes; its own logits are 20 KB and more."""
    step = random_step([{}, {"temperature": 0.0}], 6, 3, VOCAB, has_draft_logits=True, likely=0.9)

    def work(exchange: RankExchange) -> Any:
        batch, rows, drafts = step.make(torch.device("cpu"), sharded(VOCAB, exchange))
        return verify(own(step.logits, rows.shard), batch, rows, drafts, "standard", None)

    assert sent(work) < 300 * len(step.logits)


def test_prompts_and_scores_tell_no_logits() -> None:
    x = make_logits(7, VOCAB, seed=2)
    tiles, num_top = 5 * 8, 20

    def prompts(exchange: RankExchange) -> Any:
        shard = sharded(VOCAB, exchange)
        ids = torch.arange(7)
        return prompt_logprobs(
            own(x, shard), ids, num_top=num_top, explicit_ids=None, normalized=True, shard=shard
        )

    def scores(exchange: RankExchange) -> Any:
        shard = sharded(VOCAB, exchange)
        return listed_logprobs(own(x, shard), torch.arange(14).view(7, 2), shard)

    assert sent(prompts) <= 7 * (2 * tiles + 16 * num_top + 64)
    assert sent(scores) <= 7 * (2 * tiles + 16 + 64)
