"""Speculation as the host sees it: rows whose length is known only once it is read back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from engine.arrays import Int32Array, UInt8Array
from engine.contracts.runner import StepCosts, StepHandle
from engine.memory.blocks import BlockPool
from engine.messages.step_output import Finish, Origin
from engine.plan import StepPlan
from engine.planning.draft_choice import DraftChoice
from engine.planning.drafting import DRAFTS_OFF_FROM, DraftRules, draft_rules
from engine.planning.settle import Settled
from engine.rows import Choice, RowTable
from engine.speculative_config import SpeculativeConfig
from sampling.params import SamplingParams
from tests.engine.paged_fake import VOCAB, PagedFake, context_hash, make_engine, reference
from tests.engine.traffic import FRONTEND, Inbox, prompts, request, run, run_with_aborts, step

SEEDED = SamplingParams(seed=1, stop_token_ids=(0,))


def rules(num_tokens: int = 4, max_rows: int = 99, **fields: Any) -> DraftRules:
    return DraftRules(num_tokens=num_tokens, max_rows=max_rows, **fields)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(("num_blocks", "budget"), [(18, 20), (200, 20), (18, 64), (200, 64)])
@pytest.mark.parametrize("num_tokens", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_equals_reference(
    prefix_caching: bool, num_blocks: int, budget: int, num_tokens: int, seed: int
) -> None:
    rng = random.Random(seed)
    drafting = rules(num_tokens, max_rows=3 if seed == 2 else 99, has_cache=True, looks_ahead=True)
    engine, runner = make_engine(
        num_blocks=num_blocks, budget=budget, prefix_caching=prefix_caching, drafting=drafting
    )
    inbox, wanted, reported = Inbox(), {}, {}
    for handle, prompt in enumerate(prompts(rng, 25, 40)):
        n, max_tokens = rng.choice([1, 1, 3]), rng.randrange(1, 24)
        fields = {"emit_interval": rng.choice([1, 16]), "report_origins": handle % 2 == 0}
        engine.submit(FRONTEND, request(handle, prompt, n=n, max_tokens=max_tokens, **fields))
        for choice in range(n):
            if fields["report_origins"]:
                reported[handle, choice] = len(prompt)
            wanted[handle, choice] = reference(prompt, max_tokens, (0,), choice)
        step(engine, inbox, rng.randrange(4))
    run(engine, inbox)
    assert inbox.tokens == wanted
    for (handle, choice), start in reported.items():
        places = range(start, start + len(wanted[handle, choice]))
        own = [runner.origins[handle, choice, place] for place in places]
        assert inbox.origins[handle, choice] == own
        assert own[0] == Origin.DRAWN
    for key, finish in inbox.finish.items():
        assert finish == (Finish.STOP if wanted[key][-1] == 0 else Finish.LENGTH)
    if num_blocks == 18:
        assert engine.stats().num_preemptions > 0
    stats = engine.stats().drafts
    assert stats is not None
    assert 0 < stats.num_accepted < stats.num_draft_tokens
    counted = np.sum(list(inbox.drafts.values()), axis=0).tolist()
    assert counted == [stats.num_drafts, stats.num_draft_tokens, *stats.accepted_at]
    assert runner.proposed


def test_origins_cost_nothing_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Settled] = []
    origins = Settled.origins

    def spy(settled: Settled) -> UInt8Array:
        asked.append(settled)
        return origins(settled)

    monkeypatch.setattr(Settled, "origins", spy)
    engine, _ = make_engine(num_blocks=100, drafting=rules())
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, [3, 3]))
    run(engine, inbox)
    assert (asked, dict(inbox.origins)) == ([], {})
    engine.submit(FRONTEND, request(2, [3, 3], report_origins=True))
    run(engine, inbox)
    assert asked
    plain, _ = make_engine()
    plain.submit(FRONTEND, request(3, [3, 3], report_origins=True))
    del asked[:]
    run(plain, inbox)
    assert asked == [], "without a drafter every token was drawn"
    assert set(inbox.origins) == {(2, 0)}


@pytest.mark.parametrize("seed", range(10))
def test_abort_at_any_moment(seed: int) -> None:
    engine, _ = make_engine(num_blocks=18, budget=20, drafting=rules())
    inbox, live = run_with_aborts(engine, seed)
    for (handle, choice), tokens in inbox.tokens.items():
        assert tokens == reference(live[handle], 10, (0,), choice)[: len(tokens)]
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_context_is_filled_to_its_last_place(max_tokens: int) -> None:
    engine, _ = make_engine(max_model_len=24, num_blocks=8, drafting=rules())
    inbox = Inbox()
    prompt = list(range(1, 16))
    engine.submit(FRONTEND, request(1, prompt, max_tokens=max_tokens, params=SamplingParams()))
    run(engine, inbox)
    assert inbox.tokens[1, 0] == reference(prompt, min(max_tokens, 10), (), 0)
    assert inbox.finish[1, 0] == Finish.LENGTH


def test_a_bad_logit_behind_accepted_drafts_keeps_them() -> None:
    engine, runner = make_engine(num_blocks=100, drafting=rules())
    inbox = Inbox()
    whole = reference([3, 3], 10, (), 0)
    runner.bad_contexts.add(context_hash(np.array([3, 3, *whole[:5]])))
    engine.submit(FRONTEND, request(1, [3, 3], params=SamplingParams()))
    run(engine, inbox)
    assert inbox.tokens[1, 0] == whole[:5]
    assert inbox.finish[1, 0] == Finish.NAN


def test_above_its_batch_size_the_drafter_does_not_run_and_gaps_stay() -> None:
    engine, runner = make_engine(
        budget=64, num_blocks=200, drafting=rules(max_rows=2, has_cache=True)
    )
    inbox = Inbox()
    wanted = {}
    for handle in range(3):
        prompt = [handle + 1, 2]
        max_tokens = 40 if handle == 0 else 10
        engine.submit(
            FRONTEND, request(handle, prompt, max_tokens=max_tokens, params=SamplingParams())
        )
        wanted[handle, 0] = reference(prompt, max_tokens, (), 0)
    run(engine, inbox)
    assert inbox.tokens == wanted
    assert runner.proposed == [], "three rows ran together; the one left has a gap"
    engine.submit(FRONTEND, request(5, [9, 9], params=SamplingParams()))
    run(engine, inbox)
    assert runner.proposed, "a row admitted anew drafts"


def test_a_drafter_without_a_cache_has_no_gaps() -> None:
    engine, runner = make_engine(budget=64, num_blocks=200, drafting=rules(max_rows=2))
    inbox = Inbox()
    for handle in range(3):
        max_tokens = 40 if handle == 0 else 10
        engine.submit(
            FRONTEND, request(handle, [handle + 1], max_tokens=max_tokens, params=SamplingParams())
        )
    run(engine, inbox)
    assert runner.proposed
    drafts = engine.stats().drafts
    assert drafts is not None
    assert drafts.num_accepted > 0


def test_seeded_rows_draft_whatever_the_load() -> None:
    """Every decode step of a seeded row brings its k drafts, where they are sampled."""
    drafting = rules(max_rows=1, has_cache=True, draws_differ=True)
    engine, runner = make_engine(max_rows=4, budget=64, num_blocks=200, drafting=drafting)
    inbox = Inbox()
    engine.submit(FRONTEND, request(0, [1, 1], params=SamplingParams(), max_tokens=60))
    engine.submit(FRONTEND, request(1, [2, 1], params=SamplingParams(), max_tokens=60))
    step(engine, inbox, 4)
    assert max(runner.num_query_log[-1]) == 1
    engine.submit(FRONTEND, request(2, [3, 2], params=SEEDED, max_tokens=8))
    seen = len(runner.num_query_log)
    while (2, 0) not in inbox.finish:
        step(engine, inbox, 1)
    assert all(max(counts) == 5 for counts in runner.num_query_log[seen + 1 :])
    run(engine, inbox)
    assert max(runner.num_query_log[-1]) == 1


def test_a_preempted_row_goes_on_with_the_drafts_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a row begin at the same positions whether or not it loses its place."""

    def firsts(num_blocks: int) -> tuple[dict[tuple[int, int], list[int]], list[set[int]], int]:
        engine, runner = make_engine(
            num_blocks=num_blocks, budget=64, drafting=rules(has_cache=True, draws_differ=True)
        )
        seen: list[set[int]] = [set(), set(), set()]
        launch = runner.launch

        def spy(plan: StepPlan) -> StepHandle:
            handle = launch(plan)
            for row, decodes, choice in zip(plan.rows, plan.decodes, plan.choices, strict=True):
                if decodes:
                    seen[choice.request.handle].add(int(before[row]) + 1)
            before[:] = runner.num_computed
            return handle

        before = runner.num_computed.copy()
        monkeypatch.setattr(runner, "launch", spy)
        inbox = Inbox()
        for handle in range(3):
            params = SamplingParams(seed=handle)
            engine.submit(FRONTEND, request(handle, [handle + 1] * 9, params=params, max_tokens=40))
        run(engine, inbox)
        return dict(inbox.tokens), seen, engine.stats().num_preemptions

    tokens, starts, preemptions = firsts(200)
    fallen_tokens, fallen_starts, fallen = firsts(22)
    assert (preemptions, fallen > 0) == (0, True)
    assert fallen_tokens == tokens
    assert [fallen - {9} for fallen in fallen_starts] == [own - {9} for own in starts]


def test_blocks_the_drafter_never_saw_are_not_shared_with_rows_that_draft() -> None:
    pool = BlockPool(6)
    first, second = pool.grant(2), pool.grant(2)
    assert first is not None
    assert second is not None
    for block, block_hash in zip(first, (b"a", b"b"), strict=True):
        pool.register(block, block_hash, drafted=block == first[0])
    assert pool.match([b"a", b"b"]) == first
    assert pool.match([b"a", b"b"], drafted=True) == first[:1]
    assert not pool.are_drafted(first)
    pool.register(second[1], b"b", drafted=True)
    assert pool.match([b"a", b"b"], drafted=True) == [first[0], second[1]]
    pool.check([first, second])


def test_what_a_row_shares_of_a_prefix_ends_a_block_before_the_drafter_looks() -> None:
    engine, _ = make_engine(num_blocks=100, budget=64, drafting=rules(looks_ahead=True))
    inbox = Inbox()
    prompt = [1 + i % (VOCAB - 1) for i in range(22)]
    for handle in (1, 2):
        engine.submit(FRONTEND, request(handle, prompt))
        run(engine, inbox)
    assert inbox.cached == {1: 0, 2: 16}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, DraftRules()),
        (
            SpeculativeConfig(method="ngram", num_speculative_tokens=3),
            DraftRules(3, DRAFTS_OFF_FROM - 1),
        ),
        (
            SpeculativeConfig(
                method="eagle",
                model="head",
                num_speculative_tokens=3,
                rejection_sample_method="synthetic",
                synthetic_acceptance_length=2.0,
            ),
            DraftRules(3, DRAFTS_OFF_FROM - 1, has_cache=True, looks_ahead=True),
        ),
        (
            SpeculativeConfig(
                method="dflash",
                model="head",
                num_speculative_tokens=3,
                rejection_sample_method="block",
            ),
            DraftRules(3, DRAFTS_OFF_FROM - 1, has_cache=True, draws_differ=True),
        ),
        (
            SpeculativeConfig(
                method="eagle",
                model="head",
                num_speculative_tokens=2,
                draft_sample_method="gumbel",
                disable_by_batch_size=8,
            ),
            DraftRules(2, 7, has_cache=True, looks_ahead=True, draws_differ=True),
        ),
        (
            SpeculativeConfig(
                method="suffix", num_speculative_tokens=3, suffix_decoding_max_cached_requests=5
            ),
            DraftRules(3, DRAFTS_OFF_FROM - 1, shares_outputs=True),
        ),
        (
            SpeculativeConfig(
                method="draft_model",
                model="small",
                num_speculative_tokens=2,
                rejection_sample_method="coupled",
            ),
            DraftRules(2, DRAFTS_OFF_FROM - 1, has_cache=True),
        ),
    ],
)
def test_rules_of_a_configuration(config: SpeculativeConfig | None, expected: DraftRules) -> None:
    assert draft_rules(config) == expected


def test_rows_draft_while_it_pays() -> None:
    """The runner accepts about half of what it drafts; drafts stop where that does not pay."""
    verified = []
    for ratio in (1.1, 9.0):
        costs = StepCosts((8,), {0: (1.0,), 4: (ratio,)})
        engine, _ = make_engine(num_blocks=200, budget=64, drafting=rules(costs=costs))
        inbox = Inbox()
        for handle in range(8):
            engine.submit(FRONTEND, request(handle, [1 + handle, 2, 3], max_tokens=60))
        run(engine, inbox)
        stats = engine.stats().drafts
        assert stats is not None
        verified.append(stats.num_drafts)
    assert verified[1] < verified[0] / 2
    assert verified[1] > 0


class Changing(DraftChoice):
    """Wants one of some numbers of drafts each time it is asked."""

    def __init__(self, *counts: int) -> None:
        super().__init__(StepCosts((1,), dict.fromkeys({0, *counts}, (1.0,))))
        self._wanted, self._rng = counts, random.Random(0)

    def best(self, num_rows: int) -> int:
        return self._rng.choice(self._wanted)

    def learn(self, num_rows: int, num_drafts: int, accepted: Int32Array | None) -> None:
        """Nothing changes what it wants."""


def changing(*counts: int, **fields: Any) -> DraftRules:
    return rules(max(counts), choice=Changing(*counts), **fields)


@pytest.mark.parametrize(
    ("counts", "fields"),
    [
        ((4, 1, 2), {}),
        ((4, 0, 1), {}),
        ((1, 4, 2), {"has_cache": True, "looks_ahead": True}),
    ],
)
@pytest.mark.parametrize("num_blocks", [18, 200])
def test_numbers_of_drafts_that_change_change_no_token(
    counts: tuple[int, ...], fields: dict[str, Any], num_blocks: int
) -> None:
    rng, drafting = random.Random(num_blocks), changing(*counts, **fields)
    engine, runner = make_engine(num_blocks=num_blocks, budget=20, drafting=drafting)
    plans = noted(runner)
    inbox, wanted = Inbox(), {}
    for handle, prompt in enumerate(prompts(rng, 20, 40)):
        max_tokens = rng.randrange(1, 24)
        engine.submit(FRONTEND, request(handle, prompt, max_tokens=max_tokens))
        wanted[handle, 0] = reference(prompt, max_tokens, (0,), 0)
        step(engine, inbox, rng.randrange(3))
    run(engine, inbox)
    assert inbox.tokens == wanted
    verified = {plan.num_drafts for plan in plans}
    assert {1, 4} <= verified <= {0, 1, 2, 4}
    for plan in plans:
        assert plan.num_proposed >= plan.num_drafts
        if plan.is_decode:
            assert plan.num_proposed == plan.num_drafts
    stats = engine.stats().drafts
    assert stats is not None
    assert 0 < stats.num_accepted < stats.num_draft_tokens


def test_rows_with_seeds_have_all_drafts_whatever_pays() -> None:
    """From their first proposal to their last, beside others that would have one."""
    drafting = rules(4, choice=Changing(1), draws_differ=True)
    engine, runner = make_engine(num_blocks=200, budget=64, drafting=drafting)
    plans, inbox = noted(runner), Inbox()
    for handle in range(3):
        engine.submit(FRONTEND, request(handle, [5 + handle, 2, 3], max_tokens=30))
        step(engine, inbox, 3)
    seeded = request(7, [9, 9, 1], max_tokens=12, params=SEEDED)
    engine.submit(FRONTEND, seeded)
    run(engine, inbox)
    own = [plan for plan in plans if any(c.request.handle == 7 for c in plan.choices)]
    assert len(own) > 3
    assert {plan.num_proposed for plan in own} == {4}
    assert {plan.num_drafts for plan in own[1:]} == {4}
    assert 1 in {plan.num_drafts for plan in plans}


def noted(runner: PagedFake) -> list[StepPlan]:
    """The plans that a runner launches from now on."""
    plans: list[StepPlan] = []
    launch = runner.launch

    def launch_and_note(plan: StepPlan) -> StepHandle:
        plans.append(plan)
        return launch(plan)

    runner.launch = launch_and_note  # type: ignore[method-assign,assignment]
    return plans


def test_a_drafter_does_not_run_for_rows_with_gaps_alone() -> None:
    drafting = rules(max_rows=1, has_cache=True)
    engine, runner = make_engine(num_blocks=200, budget=64, drafting=drafting)
    plans = noted(runner)
    for handle, max_tokens in ((0, 40), (1, 8)):  # too many for drafts, until the second ends
        params = SamplingParams()
        engine.submit(FRONTEND, request(handle, [1, 2], max_tokens=max_tokens, params=params))
    run(engine, Inbox())
    assert plans
    assert not any(plan.runs_drafter for plan in plans)


@pytest.mark.parametrize(
    ("params", "draws_differ", "pinned"),
    [
        (SamplingParams(seed=1), True, True),
        (SamplingParams(seed=1), False, False),
        (SamplingParams(), True, False),
        (SamplingParams(seed=1, temperature=0.0), True, False),  # its tokens are the highest
    ],
)
def test_whose_tokens_need_the_same_drafts(
    params: SamplingParams, draws_differ: bool, pinned: bool
) -> None:
    asked = request(1, [1], params=params)
    assert rules(draws_differ=draws_differ).pins(asked) == pinned


@pytest.mark.parametrize(
    ("wishes", "draws_differ", "shared", "read"),
    [
        ({}, True, True, True),
        ({"params": SamplingParams(seed=1)}, True, True, False),  # drafts are of its row alone
        ({"params": SamplingParams(seed=1)}, False, True, True),
        ({"params": SamplingParams(seed=1, temperature=0.0)}, True, True, True),
        ({"cache_salt": "own"}, False, False, False),
    ],
)
def test_outputs_are_kept_once_choices_end(
    monkeypatch: pytest.MonkeyPatch,
    wishes: dict[str, Any],
    draws_differ: bool,
    shared: bool,
    read: bool,
) -> None:
    drafting = rules(draws_differ=draws_differ, shares_outputs=True)
    engine, runner = make_engine(num_blocks=18, budget=20, drafting=drafting)
    plans: list[StepPlan] = []
    launch = runner.launch

    def launch_and_note(plan: StepPlan) -> StepHandle:
        plans.append(plan)
        return launch(plan)

    monkeypatch.setattr(runner, "launch", launch_and_note)
    inbox, prompt_of = Inbox(), {handle: [1 + handle, 2, 3] * 6 for handle in range(6)}
    for handle, prompt in prompt_of.items():
        engine.submit(FRONTEND, request(handle, prompt, max_tokens=20, **wishes))
    run(engine, inbox)
    engine.submit(FRONTEND, request(9, [1], max_tokens=1))  # its plan has what ended before it
    run(engine, inbox)
    kept = [output.tolist() for plan in plans for output in plan.outputs]
    own = [tokens for (handle, _), tokens in inbox.tokens.items() if handle != 9]
    assert sorted(kept) == (sorted(own) if shared else [])
    admissions = [each for plan in plans for each in plan.admissions]
    flags = {each.reads_outputs for each in admissions if each.choice.request.handle != 9}
    assert flags == {read}
    assert engine.stats().num_preemptions > 0


def test_drafts_are_on_up_to_the_number_of_rows_or_while_one_is_pinned() -> None:
    table = RowTable(3, 32)
    few = rules(max_rows=2)

    def claim(*, is_pinned: bool) -> int:
        asked = request(1, [1])
        choice = Choice(FRONTEND, asked, 0, 0, 1, asked.prompt_token_ids)
        return table.claim(choice, 0, 1, is_pinned=is_pinned)

    rows = [claim(is_pinned=False) for _ in range(2)]
    assert few.wanted(table) == 4
    rows.append(claim(is_pinned=False))
    assert few.wanted(table) == 0
    table.vacate(rows.pop())
    rows.append(claim(is_pinned=True))
    assert few.wanted(table) == 4
    assert DraftRules().wanted(table) == 0
    assert few.num_drafts(table, np.array(rows)) == 0, "no row has any"
    table.has_drafts[rows[1]] = True
    assert few.num_drafts(table, np.array(rows)) == 4
    assert few.num_drafts(table, np.array([rows[0], rows[2]])) == 0
