"""Draws, logprobs and verification by kernels over shards: bit for bit those of one rank.

Ranks are threads that take turns (`tests.sampling.ranks`); words that were not shown are poisoned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling.device.ranks import LoneRank, RankExchange
from sampling.filters.bracket import SAMPLED, bracket
from sampling.filters.cut_state import Brackets, CutState
from sampling.filters.shortlist import Scratch
from sampling.kernels.logits import Source
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.paths import triton_path
from sampling.paths.logprobs import prompt_kernels
from sampling.rows import LOGPROBS
from sampling.sharded import cut as sharded_cut
from sampling.sharded import stages
from sampling.speculative.verification import Method, verify
from sampling.vocab_shard import VocabShard
from tests.engine.kernels.where import DEVICES
from tests.sampling.ranks import on_counting_ranks, on_ranks
from tests.sampling.sharded_cases import FILTERS, REPORTS, WISHES, own, same, sharded
from tests.sampling.speculative.speculated_steps import Step, random_step
from tests.sampling.steps import Host, Request, make_logits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where a GPU is silent

VOCAB = 4 * TILE + 304  # multiples of 16, see `tiles.kernel_shard`
SMALL = 3 * TILE + 16  # all of it is looked at by a bracket

Wishes = Sequence[dict[str, Any]]


def some(wishes: Wishes, where: str, every: int) -> Wishes:
    """The wishes on a GPU; in the interpreter, which takes seconds for few rows, some of them."""
    return wishes if where == "cuda" else wishes[::every]


def draw(
    wishes: Wishes,
    logits: Tensor,
    exchange: RankExchange,
    where: str,
    allowed: Sequence[int] | None = None,
) -> tuple[Any, Tensor]:
    """What one rank draws, and the counts that it keeps."""
    vocab_size = logits.shape[1]
    host = Host(len(wishes), vocab_size, where=where)
    host.rows.shard = sharded(vocab_size, exchange)
    for row, wish in enumerate(wishes):
        wish = {key: _inside(value, vocab_size) for key, value in wish.items()}
        params = SamplingParams(**(wish | {"constrained": allowed is not None}))
        request = Request(params, seed=row * 77 - 5, choice=row % 2, allowed=allowed)
        request.tokens += [9, 2100, 9, 2, 3]
        host.admit(row, request)
    host.rows.flush()
    batch = host.batch(range(len(wishes)))
    drawn = triton_path.draw(own(logits, host.rows.shard).to(where), batch, host.rows)
    return drawn, host.rows.counts.words


def _inside(value: Any, vocab_size: int) -> Any:
    """A parameter whose ids are within a vocabulary smaller than that of `test_shard`."""
    if isinstance(value, dict):
        return {min(token, vocab_size - 1): bias for token, bias in value.items()}
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        return tuple(min(token, vocab_size - 1) for token in value)
    return value


def assert_alike(work: Callable[[RankExchange], Any], where: str, most: int = 2) -> Any:
    """Assert that all ranks of every number of them do as one alone does; returns what it does.

    In the interpreter numbers go up to `most`.
    """
    alone = work(LoneRank())
    for size in (2, 4) if where == "cuda" else range(2, most + 1, 2):
        for rank, result in enumerate(on_ranks(size, work)):
            assert same(result, alone), f"rank {rank} of {size}"
    return alone


def assert_drawn_alike(
    wishes: Wishes, logits: Tensor, where: str, most: int = 2, **options: Any
) -> Any:
    def work(exchange: RankExchange) -> Any:
        drawn, counts = draw(wishes, logits, exchange, where, **options)
        if drawn.logprobs is not None:  # undefined in rows that do not ask for them
            asking = [row for row, wish in enumerate(wishes) if _reports(wish)]
            drawn = drawn._replace(logprobs=drawn.logprobs.at(torch.tensor(asking, device=where)))
        return drawn, counts

    return assert_alike(work, where, most)[0]


def _reports(wish: dict[str, Any]) -> bool:
    return bool(wish.keys() & {"logprobs", "logprob_token_ids", "kept_logprob"})


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("decimals", [None, 1], ids=["smooth", "ties"])
def test_filtered_draws_are_those_of_one_rank(decimals: int | None, where: str) -> None:
    wishes = some(WISHES, where, 4)
    logits = make_logits(len(wishes), VOCAB, seed=3)
    if decimals is not None:
        logits = logits.round(decimals=decimals)
    drawn = assert_drawn_alike(wishes, logits, where, most=4)
    assert not drawn.bad.any()
    assert len(set((drawn.token_ids // TILE).tolist())) > 2, "tokens of several shards were drawn"


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("width", [SMALL, VOCAB])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0], ids=["equal", "flat", "peaked"])
def test_cuts_are_those_of_one_rank(scale: float, width: int, where: str) -> None:
    """Unedited: by the kernels' other variant."""
    wishes = some([wish for wish in FILTERS for _ in range(2)], where, 3)
    logits = make_logits(len(wishes), width, seed=7, scale=scale)
    logits[1::2] = logits[1::2].round(decimals=1)

    def kept(exchange: RankExchange) -> tuple[Tensor, ...]:
        host = Host(len(wishes), width, where=where)
        host.rows.shard = shard = sharded(width, exchange)
        for row, wish in enumerate(wishes):
            host.admit(row, Request(SamplingParams(**wish)))
        host.rows.flush()
        batch = host.batch(range(len(wishes)))
        source, stats = triton_path.measure(own(logits, shard).to(where), batch, host.rows, shard)
        cuts = triton_path.cut(source, stats, batch.needs, shard)
        ids = cuts.keeps(own(logits, shard).to(where), shard.token_ids().to(where))
        padded = torch.zeros(len(wishes), width, dtype=torch.bool, device=where)
        padded[:, shard.first : shard.first + shard.width] = ids
        return exchange.all_gather(padded).any(0), stats.masses, cuts.thresholds

    kept_ids = assert_alike(kept, where)[0]
    assert kept_ids.any(1).all()
    for row, wish in enumerate(wishes):
        assert kept_ids[row].sum() <= wish.get("top_k", width)


@pytest.mark.parametrize("where", DEVICES)
def test_turns_that_are_misled_and_the_last_resort(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bracket misses every cut and no turn follows: logits of these rows are shown."""
    monkeypatch.setattr(sharded_cut, "TURNS", 1)
    num_undecided = []

    def misled(*arguments: Any, **options: Any) -> Brackets:
        found = bracket(*arguments, **options)
        found.low.copy_(found.floor)
        found.high.copy_(found.floor + 1)
        return found

    def shown(source: Source, scratch: Scratch, shard: VocabShard) -> Source:
        num_undecided.append(int((scratch.states != CutState.DECIDED).sum()))
        return stages.gather_undecided(source, scratch, shard)

    monkeypatch.setattr(sharded_cut, "bracket", misled)
    monkeypatch.setattr(sharded_cut, "gather_undecided", shown)
    wishes: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_k": 700}, {"top_k": 5}]
    assert_drawn_alike(wishes, make_logits(3, VOCAB, seed=2, scale=0.3), where)
    assert min(num_undecided) >= 2, "a shortlist decides the third"


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("report", REPORTS)
def test_logprobs_are_those_of_one_rank(report: dict[str, Any], where: str) -> None:
    reporting = [wish | report if row % 5 else wish for row, wish in enumerate(WISHES)]
    wishes = some(reporting, where, 6)
    logits = make_logits(len(wishes), VOCAB, seed=4).round(decimals=2)
    drawn = assert_drawn_alike(wishes, logits, where)
    assert drawn.logprobs.chosen.isfinite().all()


@pytest.mark.parametrize("where", DEVICES)
def test_grammars_mask_each_shard_by_its_part(where: str) -> None:
    wishes, allowed = [{"temperature": 3.0, "top_p": 0.9}] * 4, (3, TILE + 33, VOCAB - 2)
    logits = make_logits(4, VOCAB, seed=5)
    drawn = assert_drawn_alike(wishes, logits, where, allowed=allowed)
    assert set(drawn.token_ids.tolist()) <= set(allowed)


@pytest.mark.parametrize("where", DEVICES)
def test_a_bad_row_is_bad_on_every_rank(where: str) -> None:
    logits = make_logits(6, VOCAB, seed=6)
    logits[0, 4 * TILE] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, : 3 * TILE] = -torch.inf  # all that some ranks hold
    wishes: list[dict[str, Any]] = [{"top_p": 0.9}] * 4 + [{"allowed_token_ids": (TILE,)}] * 2
    logits[5, TILE] = -torch.inf
    assert assert_drawn_alike(wishes, logits, where).bad.tolist() == [1, 1, 1, 0, 0, 2]


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize(
    ("method", "has_logits"),
    [
        ("standard", True),
        ("standard", False),
        ("block", True),
        ("coupled", False),
        ("synthetic", True),
        ("synthetic", False),
    ],
)
def test_verification_is_that_of_one_rank(method: Method, has_logits: bool, where: str) -> None:
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"logprobs": 3},
        {"temperature": 0.6, "top_p": 0.9, "logprobs": 2, "logprobs_mode": "processed_logprobs"},
        {"top_k": 30, "frequency_penalty": 0.5},
        {"min_p": 0.01, "kept_logprob": True},
    ]
    step = random_step(wishes, 5, 3, VOCAB, has_draft_logits=has_logits, likely=0.97)
    rates = None
    if method == "synthetic":
        rates = torch.tensor([0.9, 0.5, 0.4], dtype=torch.float64, device=where)
    alone, _ = assert_alike(lambda exchange: _verify(step, exchange, method, rates, where), where)
    assert 0 < int(alone.num_accepted.sum()) < 15, "drafts are accepted and refused"


def _verify(
    step: Step, exchange: RankExchange, method: Method, rates: Tensor | None, where: str
) -> Any:
    batch, rows, drafts = step.make(torch.device(where), sharded(VOCAB, exchange))
    logits = own(step.logits, rows.shard).to(where)
    outcome = verify(logits, batch, rows, drafts, method, rates)
    if outcome.logprobs is not None:  # undefined where no token is kept, or none is asked for
        asks = rows.flags_np[batch.rows_np] & LOGPROBS
        kept = torch.zeros(len(batch.rows_np), dtype=torch.bool)
        for start, count in zip(drafts.starts.tolist(), outcome.num_new.tolist(), strict=True):
            kept[start : start + count] = True
        kept &= torch.from_numpy(asks != 0)
        index = kept.nonzero().flatten().to(where)
        outcome = outcome._replace(logprobs=outcome.logprobs.at(index))
    return outcome, rows.counts.words


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("num_top", [0, 20, 128])
def test_prompt_logprobs_are_those_of_one_rank(num_top: int, where: str) -> None:
    x = make_logits(5, VOCAB, seed=8).round(decimals=2)
    targets = (torch.arange(5) * 1100).to(where)
    ids = torch.tensor([3, VOCAB - 1, VOCAB, -1]).expand(5, -1).to(where)

    def report(exchange: RankExchange) -> Any:
        shard = sharded(VOCAB, exchange)
        return prompt_kernels(own(x, shard).to(where), targets, num_top, ids, True, shard)

    alone = assert_alike(report, where)
    assert alone.explicit[:, 2:].eq(-torch.inf).all()


@pytest.mark.parametrize("where", DEVICES)
def test_no_logits_are_told(where: str) -> None:
    """What a rank sends of a row, in bytes; its own logits are 80 KB."""
    vocab_size = 40 * TILE

    def sent(wish: dict[str, Any], scale: float = 3.0) -> int:
        logits = make_logits(1, vocab_size, seed=10, scale=scale)
        shown = on_counting_ranks(2, lambda exchange: draw([wish], logits, exchange, where))
        return max(sum(bytes_sent) for _, bytes_sent in shown)

    tiles = 20 * (4 + 4 + 8 * 4)  # maxima, masses, and peaks of 128 ids
    fields = 3 * 4 * 64  # begin at multiples of so many words
    ends = 2 * 4  # the token, and the last id that is kept
    assert sent({}) == 32
    few = sent({"top_k": 50, "top_p": 0.95})
    assert tiles < few <= tiles + fields + 256 * 8 + ends
    samples, measures = 4 * (4096 // 2 + 16), 4 * 7 * 32
    assert tiles + samples < sent({"top_p": 0.95}, scale=0.3)
    assert sent({"top_p": 0.95}, scale=0.3) <= few + samples + measures + 4 * 8192
    raw, given = 20 * (4 + 4), 4 * 2
    reported = sent({"logprobs": 5})
    assert reported <= 20 * 8 + raw + 4 * 4 * 64 + given + 8 * 5 + 4 + ends


def test_sampled_places_are_each_held_by_their_rank() -> None:
    """Every token that a turn may sample lies in a place of the rank that holds it."""
    for vocab_size in (VOCAB, SMALL, 151936, 128256):
        for size in (1, 2, 4):
            rank = LoneRank()
            rank.size = size
            starts = VocabShard.split(vocab_size, rank).starts
            slots = stages.sampled_slots(starts)
            assert slots.width <= -(-SAMPLED // size) + 2 * stages.UNIT + 2 * TILE
            groups, stretches = vocab_size // 8, SAMPLED // 8
            for slot in range(0, SAMPLED, 8):
                first = slot
                ends = (slot, slot)
                if vocab_size > SAMPLED:
                    stretch = slot // 8
                    ends = (stretch * groups // stretches, (stretch + 1) * groups // stretches - 1)
                    ends = (8 * ends[0], 8 * ends[1])
                for token in ends:
                    if token < vocab_size:
                        owner = max(r for r in range(size) if starts[r] <= token)
                        assert 0 <= first - slots.firsts[owner] < slots.width
