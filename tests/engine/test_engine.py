"""The engine's loop over a runner whose draws depend on every page it reads."""

from __future__ import annotations

import random
import weakref

import numpy as np
import pytest

from engine.arrays import Int32Array
from engine.contracts.runner import RunnerLostError, StepHandle
from engine.messages.request import PromptLogprobsParams
from engine.messages.step_output import Finish
from engine.plan import StepPlan
from sampling.params import SamplingParams
from tests.engine.paged_fake import VOCAB, context_hash, make_engine, reference
from tests.engine.traffic import FRONTEND, Inbox, prompts, request, run, run_with_aborts, step


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [18, 200])  # 18: one context barely fits, so rows fall
@pytest.mark.parametrize("budget", [4, 16, 64])
@pytest.mark.parametrize("seed", range(5))
def test_random_traffic_equals_reference(
    prefix_caching: bool, num_blocks: int, budget: int, seed: int
) -> None:
    rng = random.Random(seed)
    engine, _ = make_engine(num_blocks=num_blocks, budget=budget, prefix_caching=prefix_caching)
    inbox, wanted = Inbox(), {}
    for handle, prompt in enumerate(prompts(rng, 25, 40)):
        n, max_tokens = rng.choice([1, 1, 3]), rng.randrange(1, 20)
        interval = rng.choice([1, 5, 16])
        engine.submit(
            FRONTEND,
            request(handle, prompt, n=n, max_tokens=max_tokens, emit_interval=interval),
        )
        for choice in range(n):
            wanted[handle, choice] = reference(prompt, max_tokens, (0,), choice)
        step(engine, inbox, rng.randrange(4))  # requests arrive while others run
    run(engine, inbox)
    assert inbox.tokens == wanted
    for key, finish in inbox.finish.items():
        assert finish == (Finish.STOP if wanted[key][-1] == 0 else Finish.LENGTH)
    if num_blocks == 18:
        assert engine.stats().num_preemptions > 0
    timings = engine.stats().timings
    phases = timings.queue, timings.prefill, timings.decode, timings.inference
    assert all(sum(phase.counts) == len(wanted) for phase in phases)
    assert all(phase.total > 0 for phase in phases[:2])
    assert timings.inference.total == pytest.approx(timings.prefill.total + timings.decode.total)
    assert sum(timings.step_tokens.counts) == engine.stats().num_steps
    assert sum(timings.preemptions.counts) == len(wanted)
    assert timings.preemptions.total == engine.stats().num_preemptions
    several = [tokens for tokens in wanted.values() if len(tokens) > 1]
    assert sum(timings.later_token.counts) == len(several)
    shortest, longest = (f(len(tokens) for tokens in several) - 1 for f in (min, max))
    assert timings.decode.total / longest <= timings.later_token.total * (1 + 1e-9)
    assert timings.later_token.total <= timings.decode.total / shortest


def test_times_of_a_choice_that_its_frontend_ends_are_counted() -> None:
    engine, _ = make_engine()
    for handle in (1, 2):
        engine.submit(FRONTEND, request(handle, [5, 6, 7], params=SamplingParams()))
    engine.step()
    engine.step()  # reads the first tokens back
    engine.submit(FRONTEND, request(3, [5, 6], params=SamplingParams()))
    engine.abort(FRONTEND, 1)
    engine.abort(FRONTEND, 3)  # drew nothing
    assert sum(engine.stats().timings.queue.counts) == 1


def test_gauges_and_counters_of_a_known_course() -> None:
    engine, _ = make_engine(max_rows=1, num_blocks=11, budget=6)
    for handle in (1, 2):
        asked = request(handle, list(range(1, 9)), max_tokens=3, params=SamplingParams())
        engine.submit(FRONTEND, asked)
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.kv_blocks_used, stats.kv_blocks_total) == (2, 10)
    assert (stats.num_steps, stats.prompt_tokens_computed) == (0, 0), "nothing was read back"
    run(engine, Inbox())
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)
    # Chunks of 6 and 2, two more tokens; then 4 of the prompt, whose first block is known.
    assert stats.num_steps == 4 + 3
    assert stats.prompt_tokens_computed == 8 + 4
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (16, 4)
    assert stats.timings.step_tokens.total == 8 + 2 + 4 + 2
    assert (stats.nan_rows, stats.failed_steps, stats.num_preemptions) == (0, 0, 0)
    assert stats.drafts is None


def test_one_step_is_in_flight() -> None:
    engine, runner = make_engine()
    engine.submit(FRONTEND, request(1, [5, 6, 7], max_tokens=4, params=SamplingParams()))
    assert engine.step() == [], "nothing is read back before the next step was planned"
    [(_, output)] = engine.step()
    assert output.num_new.tolist() == [1]
    assert runner.num_query_log == [[3], [1]]


def test_extra_token_after_a_stop_is_dropped() -> None:
    prompt = next(p for p in ([a, b] for a in range(1, 50) for b in range(1, 50))
                  if len(reference(p, 9, (0,), 0)) == 3)  # fmt: skip
    engine, runner = make_engine()
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, prompt, max_tokens=9))
    run(engine, inbox)
    assert inbox.tokens[1, 0] == reference(prompt, 9, (0,), 0)
    assert len(runner.num_query_log) == 4, "the step launched before the stop was read"


@pytest.mark.parametrize("num_steps", range(6))
def test_what_a_frontend_asked_for_ends_with_it_and_nothing_else(num_steps: int) -> None:
    """Requests of two frontends have the same handles; rows and blocks of one are given back."""
    engine, _ = make_engine(max_rows=3)
    asked = [request(handle, [5, 6, 7], max_tokens=12, n=2) for handle in (1, 2)]
    for frontend in (b"gone", FRONTEND):
        for each in asked:
            engine.submit(frontend, each)
    gone, kept = Inbox(), Inbox()

    def read(count: int) -> None:
        for _ in range(count):
            for frontend, output in engine.step():
                (gone if frontend == b"gone" else kept).read(output)

    read(num_steps)
    engine.abort_all(b"gone")
    engine.abort_all(b"unknown")
    engine.check()
    while engine.has_work:
        read(1)
    keys = [(handle, choice) for handle in (1, 2) for choice in (0, 1)]
    assert gone.finish == dict.fromkeys(keys, Finish.ABORT)
    assert kept.tokens == {key: reference([5, 6, 7], 12, (0,), key[1]) for key in keys}
    assert engine.stats().kv_blocks_used == 0
    engine.check()


@pytest.mark.parametrize("seed", range(10))
def test_abort_at_any_moment(seed: int) -> None:
    engine, _ = make_engine(num_blocks=18)
    inbox, live = run_with_aborts(engine, seed)
    for (handle, choice), tokens in inbox.tokens.items():
        whole = reference(live[handle], 10, (0,), choice)
        assert tokens == whole[: len(tokens)]
        if inbox.finish[handle, choice] != Finish.ABORT:
            assert tokens == whole
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize("parks", [False, True])
def test_what_is_aborted_behind_a_head_that_cannot_start_is_let_go_of(parks: bool) -> None:
    """However long clients come and go, and while requests are parked too."""
    engine, _ = make_engine(num_blocks=7, max_model_len=24)
    inbox = Inbox()
    endless = {"max_tokens": 20, "params": SamplingParams()}
    engine.submit(FRONTEND, request(0, [1, 2, 3, 4], **endless))
    step(engine, inbox, 3)
    engine.submit(FRONTEND, request(1, [1 + i % 9 for i in range(22)], **endless))
    step(engine, inbox, 1)
    if parks:
        engine.held.park()
    held: list[weakref.ref[Int32Array]] = []
    for handle in range(2, 3002):
        asked = request(handle, [1] * 20, n=1 + handle % 3)
        held.append(weakref.ref(asked.prompt_token_ids))
        engine.submit(FRONTEND, asked)
        if handle % 10 == 1:  # so some wait beside one another
            for each in range(handle - 9, handle + 1):
                engine.abort(FRONTEND, each)
    del asked
    step(engine, inbox, 1)
    assert sum(prompt() is not None for prompt in held) < 20
    assert engine.stats().num_running == 1, "the head still waits"
    engine.submit(FRONTEND, request(9999, [1], **endless))
    engine.held.release()
    run(engine, inbox)
    assert {inbox.finish[handle, 0] for handle in (0, 1, 9999)} == {Finish.LENGTH}


def test_frontends_hear_only_of_their_own() -> None:
    engine, _ = make_engine()
    inboxes = {b"a": Inbox(), b"b": Inbox()}
    for frontend in inboxes:
        for handle in (1, 2):
            engine.submit(frontend, request(handle, [handle, frontend[0] % VOCAB]))
    while engine.has_work:
        for frontend, output in engine.step():
            inboxes[frontend].read(output)
    for frontend, inbox in inboxes.items():
        assert inbox.tokens == {
            (h, 0): reference([h, frontend[0] % VOCAB], 10, (0,), 0) for h in (1, 2)
        }


def test_bad_logits_end_one_choice_and_keep_its_blocks_from_others() -> None:
    engine, runner = make_engine(num_blocks=100)
    inbox = Inbox()
    prompt = list(range(1, 10))
    runner.bad_contexts.add(context_hash(np.array(prompt)))
    engine.submit(FRONTEND, request(1, prompt))
    engine.submit(FRONTEND, request(2, [4, 4]))
    run(engine, inbox)
    assert inbox.finish[1, 0] == Finish.NAN
    assert inbox.tokens[1, 0] == []
    assert inbox.tokens[2, 0] == reference([4, 4], 10, (0,), 0)
    runner.bad_contexts.clear()
    engine.submit(FRONTEND, request(3, prompt))
    run(engine, inbox)
    assert inbox.cached[3] == 0
    assert engine.stats().nan_rows == 1


def test_a_failed_step_ends_its_own_choices_only() -> None:
    engine, runner = make_engine()
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, [3, 3]))
    runner.fail_next = True
    engine.step()
    engine.submit(FRONTEND, request(2, [4, 4]))
    run(engine, inbox)
    assert inbox.finish[1, 0] == Finish.ERROR
    assert inbox.errors == {1: "MemoryError: no memory for this step"}
    assert inbox.tokens[2, 0] == reference([4, 4], 10, (0,), 0)
    assert engine.stats().failed_steps == 1


@pytest.mark.parametrize("later_choices_wait_for", ["failure", "abort", "only token"])
def test_when_a_first_choice_ends_early_the_others_of_its_request_go_on(
    later_choices_wait_for: str,
) -> None:
    """They wait for its prompt, and no other traffic comes that could wake them."""
    engine, runner = make_engine()
    inbox = Inbox()
    max_tokens = 1 if later_choices_wait_for == "only token" else 10
    runner.fail_next = later_choices_wait_for == "failure"
    engine.submit(FRONTEND, request(1, [3, 3], n=3, max_tokens=max_tokens))
    step(engine, inbox)
    if later_choices_wait_for == "abort":
        engine.abort(FRONTEND, 1, 0)
    run(engine, inbox)
    first = {"failure": Finish.ERROR, "abort": Finish.ABORT}.get(later_choices_wait_for)
    assert first is None or inbox.finish[1, 0] == first
    for choice in (1, 2):
        assert inbox.tokens[1, choice] == reference([3, 3], max_tokens, (0,), choice)


def test_unseeded_requests_have_seeds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds of 64 bits: three drawn ones are equal by chance once in 2**62 runs."""
    engine, runner = make_engine(max_rows=8)
    seeds: dict[int, set[int]] = {}
    launch = runner.launch

    def spy(plan: StepPlan) -> StepHandle:
        for admission in plan.admissions:
            choice = admission.choice
            seeds.setdefault(choice.request.handle, set()).add(choice.seed)
        return launch(plan)

    monkeypatch.setattr(runner, "launch", spy)
    for handle in (1, 2, 3):
        engine.submit(FRONTEND, request(handle, [handle], n=2))
    engine.submit(FRONTEND, request(4, [4], params=SamplingParams(seed=-5), n=2))
    run(engine, Inbox())
    assert seeds.pop(4) == {-5}
    assert all(len(each) == 1 for each in seeds.values()), "choices differ by their index"
    drawn = set().union(*seeds.values())
    assert len(drawn) == 3
    assert all(-(2**63) <= seed < 2**63 for seed in drawn)


def test_a_lost_device_is_not_survived() -> None:
    engine, runner = make_engine()
    engine.submit(FRONTEND, request(1, [3, 3]))
    runner.fail_next, runner.failure = True, RunnerLostError("an illegal memory access")
    engine.step()
    with pytest.raises(RunnerLostError):
        engine.step()


@pytest.mark.parametrize("num_blocks", [18, 100])
@pytest.mark.parametrize("start", [1, 7, 20])
def test_prompt_logprobs_are_complete_whatever_the_chunks(num_blocks: int, start: int) -> None:
    engine, _ = make_engine(num_blocks=num_blocks, budget=5)
    inbox = Inbox()
    prompt = [1 + i % (VOCAB - 1) for i in range(21)]
    engine.submit(FRONTEND, request(0, prompt))
    run(engine, inbox)
    for handle in (1, 2):
        wanted = PromptLogprobsParams(start=start)
        engine.submit(FRONTEND, request(handle, prompt, n=2, prompt_logprobs=wanted))
    run(engine, inbox)
    for handle in (1, 2):
        assert inbox.prompt_logprobs[handle].start == start
        assert inbox.prompt_logprobs[handle].logprobs.ranks.tolist() == prompt[start:]
        assert inbox.cached[handle] >= (start - 1) // 4 * 4 * (num_blocks > 18)


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_prompt_logprobs_begin_again_when_a_prompt_is_preempted(steps: int) -> None:
    """Preempted between two of its chunks, one of them in flight: each position comes once."""
    engine, _ = make_engine(num_blocks=11, budget=5)  # ten blocks
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, [1, 2], max_tokens=30, params=SamplingParams()))
    step(engine, inbox, steps)
    prompt = [1 + i % (VOCAB - 1) for i in range(31)]
    wanted = PromptLogprobsParams()
    engine.submit(FRONTEND, request(2, prompt, max_tokens=1, prompt_logprobs=wanted))
    run(engine, inbox)
    assert engine.stats().num_preemptions > 0
    assert engine.stats().prompt_tokens_computed > 2 + 31, "some of it was computed twice"
    assert inbox.prompt_logprobs[2].logprobs.ranks.tolist() == prompt[1:]


def test_min_tokens_outlasts_a_stop_id() -> None:
    # The sampler masks stop ids until min_tokens; the engine must not end on one either.
    engine, _ = make_engine()
    inbox = Inbox()
    every = tuple(range(VOCAB))
    params = SamplingParams(stop_token_ids=every, min_tokens=3)
    engine.submit(FRONTEND, request(1, [1, 2], params=params))
    run(engine, inbox)
    assert len(inbox.tokens[1, 0]) == 4


def test_a_prompt_over_the_context_is_refused_with_the_numbers() -> None:
    engine, _ = make_engine(max_model_len=8)
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, [1] * 9))
    run(engine, inbox)
    assert inbox.finish[1, 0] == Finish.ERROR
    assert "9 tokens" in inbox.errors[1]
    assert "8" in inbox.errors[1]


def test_prompts_of_every_length_that_fits() -> None:
    engine, _ = make_engine(max_model_len=8)
    inbox = Inbox()
    for handle in (0, 1, 8):
        engine.submit(FRONTEND, request(handle, [3] * handle, params=SamplingParams()))
    run(engine, inbox)
    assert inbox.finish == {(0, 0): Finish.ERROR, (1, 0): Finish.LENGTH, (8, 0): Finish.LENGTH}
    assert inbox.tokens[1, 0] == reference([3], 8, (), 0)
    assert inbox.tokens[8, 0] == reference([3] * 8, 1, (), 0), "the last token is not computed"
