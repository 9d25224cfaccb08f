"""Plans of the scheduler: whose turn it is, how many tokens, through the engine's loop too."""

from __future__ import annotations

import pytest

from engine.messages.request import PromptLogprobsParams
from engine.planning.drafting import DraftRules
from engine.planning.pace import Pace
from engine.rows import Choice
from sampling.params import SamplingParams
from tests.engine.paged_fake import make_engine, reference
from tests.engine.planning.scheduler_setup import Setup, counts
from tests.engine.traffic import FRONTEND, Inbox, request, run, step


def test_nothing_to_do_is_no_plan() -> None:
    setup = Setup()
    assert setup.scheduler.plan() is None
    setup.enqueue([1, 2], max_tokens=1)
    setup.plan()
    assert setup.scheduler.plan() is None, "its only token is drawn by the step in flight"


def test_prompts_are_chunked_to_the_budget_and_draw_at_their_end() -> None:
    setup = Setup(budget=6)
    setup.enqueue(list(range(1, 11)))
    first = setup.plan()
    assert (counts(first), first.samples.tolist()) == ({1: 6}, [False])
    assert (first.starts.tolist(), first.num_prompt_tokens) == ([0], 6)
    assert [admission.num_computed for admission in first.admissions] == [0]
    second = setup.plan()
    assert (counts(second), second.samples.tolist()) == ({1: 4}, [True])
    assert (second.starts.tolist(), second.num_prompt_tokens) == ([6], 4)
    assert second.admissions == []
    third = setup.plan()
    assert (counts(third), third.decodes.tolist()) == ({1: 1}, [True])
    assert (third.starts.tolist(), third.num_prompt_tokens) == ([10], 0)


def test_decoding_rows_come_first_and_prompts_get_what_is_left() -> None:
    setup = Setup(budget=8)
    setup.enqueue([1, 2])
    setup.enqueue([3, 4])
    setup.step()
    setup.enqueue(list(range(5, 25)))
    setup.enqueue([9])
    plan = setup.plan()
    assert counts(plan) == {1: 1, 2: 1, 3: 6}
    assert plan.decodes.tolist() == [True, True, False]
    assert setup.table.num_vacant == 1, "no budget, no row"


def test_a_step_lists_decoding_rows_then_single_tokens_then_chunks() -> None:
    setup = Setup()
    setup.enqueue([1, 2])
    setup.step()
    setup.enqueue([5, 6, 7])
    setup.enqueue([8])
    plan = setup.plan()
    assert plan.num_query.tolist() == [1, 1, 3]
    assert plan.decodes.tolist() == [True, False, False]
    assert [choice.request.handle for choice in plan.choices] == [1, 3, 2]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    setup = Setup(budget=8, chunked_prefill=False)
    setup.enqueue([1, 2, 3])
    setup.enqueue(list(range(4, 10)))
    assert counts(setup.step()) == {1: 3}, "five tokens are left for six"
    assert counts(setup.step()) == {1: 1, 2: 6}


def test_a_burst_fills_the_rows_over_some_steps() -> None:
    """Each step admits two, or twice as many as run: 2, 4, 12, and what is left."""
    setup = Setup(max_rows=30, burst_rows=2, budget=60)
    choices = [setup.enqueue([token + 1]) for token in range(22)]
    setup.scheduler.forget(choices[1])
    admitted = []
    while admissions := setup.step().admissions:
        admitted.append([each.choice.request.handle for each in admissions])
    assert admitted[:2] == [[1, 3], [4, 5, 6, 7]]
    assert [len(each) for each in admitted] == [2, 4, 12, 3]


def test_a_burst_of_single_tokens_grows_too() -> None:
    """Those of the step in flight are all that run."""
    engine, runner = make_engine(num_blocks=600, max_rows=400, budget=400)
    for handle in range(500):
        engine.submit(FRONTEND, request(handle, [5], max_tokens=1))
    run(engine, Inbox())
    assert [len(counts) for counts in runner.num_query_log] == [32, 64, 128, 256, 20]


def test_rows_without_drafts_of_their_own_are_named() -> None:
    """Else the drafts of an earlier step would be verified again."""
    setup = Setup(drafting=DraftRules(num_tokens=2, max_rows=9))
    first, second = setup.enqueue([1]), setup.enqueue([2])
    assert setup.step().undrafted == []
    assert first.row is not None
    setup.table.has_drafts[first.row] = False
    plan = setup.plan()
    assert (plan.num_drafts, plan.num_query.tolist()) == (2, [3, 3])
    assert plan.undrafted == [first.row]
    assert second.row in plan.rows


def test_a_choice_that_ended_while_it_waited_is_skipped() -> None:
    setup = Setup()
    setup.scheduler.forget(setup.enqueue([1, 2]))
    setup.enqueue([3])
    assert counts(setup.plan()) == {2: 1}


def test_prefix_counters_count_a_choice_once() -> None:
    setup = Setup()
    setup.enqueue(list(range(1, 11)))
    setup.step()
    second = setup.enqueue(list(range(1, 11)))
    setup.step()
    assert second.num_cached == 8
    assert setup.scheduler.prefix_counts == (20, 8)
    assert second.row is not None
    setup.scheduler._preempt(second.row)
    setup.step()
    assert setup.scheduler.prefix_counts == (20, 8)
    assert second.num_cached == 8


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    setup = Setup()
    setup.enqueue(list(range(1, 9)))
    setup.step()
    setup.enqueue(list(range(1, 9)))
    plan = setup.plan()
    assert counts(plan)[2] == 4, "its second block holds the last token"


@pytest.mark.parametrize(("start", "num_computed"), [(4, 13), (5, 9), (6, 9), (8, 9), (9, 5)])
def test_tokens_whose_logprobs_are_wanted_are_computed(start: int, num_computed: int) -> None:
    """The logprob of a block's first token comes from computing the last one of the block before.

    Blocks have 4 tokens: where values begin with token 8, block 1 is computed again.
    """
    setup = Setup()
    setup.enqueue(list(range(1, 14)))
    setup.step()
    asked = request(2, list(range(1, 14)), prompt_logprobs=PromptLogprobsParams(start=start))
    choice = Choice(FRONTEND, asked, 0, 0, 2, asked.prompt_token_ids, prompt_parts=[])
    setup.scheduler.enqueue(choice)
    assert counts(setup.plan())[2] == num_computed


def test_length_is_known_ahead_so_no_step_is_wasted() -> None:
    engine, runner = make_engine()
    engine.submit(FRONTEND, request(1, [5, 6, 7], max_tokens=4, params=SamplingParams()))
    run(engine, Inbox())
    assert runner.num_query_log == [[3], [1], [1], [1]]


def test_prefix_is_shared_and_counted() -> None:
    engine, _ = make_engine(num_blocks=100)
    inbox = Inbox()
    prompt = list(range(1, 23))
    engine.submit(FRONTEND, request(1, prompt))
    run(engine, inbox)
    engine.submit(FRONTEND, request(2, prompt))
    run(engine, inbox)
    assert inbox.cached == {1: 0, 2: 20}
    assert engine.stats().prefix_cache_hits == 20


def test_cache_salt_keeps_prefixes_apart() -> None:
    engine, _ = make_engine(num_blocks=100)
    inbox = Inbox()
    for handle, salt in enumerate(["a", "b", "a"]):
        engine.submit(FRONTEND, request(handle, list(range(1, 23)), cache_salt=salt))
        run(engine, inbox)
    assert inbox.cached == {0: 0, 1: 0, 2: 20}


def test_choices_share_the_prompt_even_without_prefix_caching() -> None:
    engine, runner = make_engine(num_blocks=100, prefix_caching=False)
    inbox = Inbox()
    prompt = list(range(1, 14))
    engine.submit(FRONTEND, request(1, prompt, n=3))
    run(engine, inbox)
    computed = sum(max(counts) for counts in runner.num_query_log if max(counts) > 1)
    assert computed == 13, "only the first choice computes the shared blocks"
    assert dict(inbox.tokens) == {(1, i): reference(prompt, 10, (0,), i) for i in range(3)}


def test_priority_runs_first_and_falls_last() -> None:
    engine, _ = make_engine(max_rows=1, policy="priority")
    order = []
    for handle, priority in [(1, 5), (2, 0), (3, -3)]:
        engine.submit(FRONTEND, request(handle, [handle], priority=priority))
    while engine.has_work:
        for _, output in engine.step():
            order += [h for h, f in zip(output.handles, output.finish, strict=True) if f]
    assert order == [3, 2, 1]


def test_a_large_body_gives_way_to_those_after_it() -> None:
    """Its third choice is served as if its body had come two later, and so on."""
    engine, _ = make_engine(max_rows=1)
    for handle, num_before in [(1, 0), (2, 2), (3, 4), (4, 0), (5, 0)]:
        n = 2 if handle <= 3 else 1
        engine.submit(FRONTEND, request(handle, [handle], n=n, num_before=num_before))
    order = []
    while engine.has_work:
        for _, output in engine.step():
            order += output.handles[output.finish > 0].tolist()
    assert order == [1, 1, 4, 2, 5, 2, 3, 3]


@pytest.mark.parametrize("n", [2, 3])
def test_later_choices_wait_for_the_prompt_and_no_longer(n: int) -> None:
    """In chunks: of thirteen tokens, each of the others computes the last one alone."""
    engine, runner = make_engine(num_blocks=100, budget=5)
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, list(range(1, 14)), n=n, params=SamplingParams()))
    run(engine, inbox)
    assert engine.stats().prompt_tokens_computed == 13 + n - 1
    assert max(map(len, runner.num_query_log)) == n, "they run side by side"


@pytest.fixture
def three_prompt_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "prompt_tokens", 3)


@pytest.mark.usefixtures("three_prompt_tokens")
def test_prompts_beside_rows_that_decode_get_what_the_gap_allows() -> None:
    setup = Setup(budget=16)
    setup.enqueue([1, 2, 3, 4, 5])
    assert counts(setup.step()) == {1: 5}, "nobody waits for a token yet"
    setup.enqueue([6, 7, 8, 9])
    setup.enqueue([10, 11, 12, 13])
    assert counts(setup.step()) == {1: 1, 2: 3}, "a new prompt"
    assert counts(setup.step()) == {1: 1, 2: 1, 3: 2}, "a prompt that goes on, and a new one"
    assert counts(setup.step()) == {1: 1, 2: 1, 3: 2}
    assert counts(setup.step()) == {1: 1, 2: 1, 3: 1}


@pytest.mark.usefixtures("three_prompt_tokens")
def test_prompts_have_the_whole_budget_where_no_row_decodes() -> None:
    setup = Setup(budget=16)
    setup.enqueue(list(range(1, 30)))
    assert counts(setup.step()) == {1: 16}
    assert counts(setup.step()) == {1: 13}


@pytest.mark.usefixtures("three_prompt_tokens")
def test_bounded_prompts_change_no_token_and_every_step_is_timed_once() -> None:
    engine, _ = make_engine(num_blocks=100, budget=16)
    inbox, prompts = Inbox(), {handle: [handle, 7, 9] * 5 for handle in range(1, 8)}
    for handle, prompt in prompts.items():
        engine.submit(FRONTEND, request(handle, prompt))
        step(engine, inbox, 2)
    run(engine, inbox)
    engine.check()
    assert not engine._scheduler._pace._launched_at
    for handle, prompt in prompts.items():
        assert inbox.tokens[handle, 0] == reference(prompt, 10, (0,), 0)
