"""The engine's loop over a runner whose draws depend on every page it reads."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from engine.engine import Engine
from engine.plan import RunnerLostError
from engine.request import Finish, PromptLogprobsParams, Request, StepOutput
from sampling.params import SamplingParams
from tests.engine.paged_fake import VOCAB, context_hash, make_engine, reference

FRONTEND = b"frontend"


class Inbox:
    """Joins step outputs per choice and insists on exactly one end each."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.finish: dict[tuple[int, int], Finish] = {}
        self.errors: dict[int, str] = {}
        self.scores = {}
        self.cached: dict[int, int] = {}

    def read(self, output: StepOutput) -> None:
        start = 0
        self.errors |= output.errors
        for scores in output.prompt_logprobs:
            self.scores[scores.handle] = scores
        for i, handle in enumerate(output.handles.tolist()):
            key = (handle, int(output.choices[i]))
            assert key not in self.finish, "an entry after the end"
            count = int(output.num_new[i])
            self.tokens[key] += output.token_ids[start : start + count].tolist()
            self.cached[handle] = int(output.num_cached[i])
            start += count
            if output.finish[i]:
                self.finish[key] = Finish(int(output.finish[i]))
        assert start == len(output.token_ids)


def request(handle: int, prompt: list[int], **fields: object) -> Request:
    params = fields.pop("params", SamplingParams(stop_token_ids=(0,)))
    fields.setdefault("max_tokens", 10)
    return Request(
        handle=handle, prompt_token_ids=np.array(prompt, dtype=np.int32), params=params, **fields
    )


def run(engine: Engine, inbox: Inbox, max_steps: int = 5000) -> None:
    for _ in range(max_steps):
        if not engine.has_work:
            engine.check()
            return
        for _, output in engine.step():
            inbox.read(output)
    raise AssertionError("the engine does not come to an end")


def prompts(rng: random.Random, count: int, longest: int) -> list[list[int]]:
    base = [rng.randrange(1, VOCAB) for _ in range(longest)]
    made = []
    for _ in range(count):
        shared = rng.randrange(0, longest // 2)
        own = rng.randrange(1, longest - shared)
        made.append(base[:shared] + [rng.randrange(1, VOCAB) for _ in range(own)])
    return made


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
        for _ in range(rng.randrange(4)):  # requests arrive while others run
            for _, output in engine.step():
                inbox.read(output)
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


def test_one_step_is_in_flight() -> None:
    engine, runner = make_engine()
    engine.submit(FRONTEND, request(1, [5, 6, 7], max_tokens=4, params=SamplingParams()))
    assert engine.step() == [], "nothing is read back before the next step was planned"
    [(_, output)] = engine.step()
    assert output.num_new.tolist() == [1]
    assert runner.num_query_log == [[3], [1]]


def test_length_is_known_ahead_so_no_step_is_wasted() -> None:
    engine, runner = make_engine()
    engine.submit(FRONTEND, request(1, [5, 6, 7], max_tokens=4, params=SamplingParams()))
    run(engine, Inbox())
    assert runner.num_query_log == [[3], [1], [1], [1]]


def test_extra_token_after_a_stop_is_dropped() -> None:
    prompt = next(p for p in ([a, b] for a in range(1, 50) for b in range(1, 50))
                  if len(reference(p, 9, (0,), 0)) == 3)  # fmt: skip
    engine, runner = make_engine()
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, prompt, max_tokens=9))
    run(engine, inbox)
    assert inbox.tokens[1, 0] == reference(prompt, 9, (0,), 0)
    assert len(runner.num_query_log) == 4, "the step launched before the stop was read"


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


def run_with_aborts(engine: Engine, seed: int) -> tuple[Inbox, dict[int, list[int]]]:
    """What 30 prompts answer, by handle, while half of the time something is aborted."""
    rng = random.Random(seed)
    inbox, live = Inbox(), dict[int, list[int]]()
    for handle, prompt in enumerate(prompts(rng, 30, 30)):
        live[handle] = prompt
        engine.submit(FRONTEND, request(handle, prompt, n=rng.choice([1, 2])))
        if rng.random() < 0.5:
            engine.abort(FRONTEND, rng.choice(list(live)), rng.choice([-1, 0, 1]))
        for _ in range(rng.randrange(3)):
            for _, output in engine.step():
                inbox.read(output)
        engine.check()
    run(engine, inbox)
    return inbox, live


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


def test_a_lost_device_is_not_survived() -> None:
    engine, runner = make_engine()
    engine.submit(FRONTEND, request(1, [3, 3]))
    runner.fail_next, runner.failure = True, RunnerLostError("an illegal memory access")
    engine.step()
    with pytest.raises(RunnerLostError):
        engine.step()


def test_priority_runs_first_and_falls_last() -> None:
    engine, _ = make_engine(max_rows=1, policy="priority")
    order = []
    for handle, priority in [(1, 5), (2, 0), (3, -3)]:
        engine.submit(FRONTEND, request(handle, [handle], priority=priority))
    while engine.has_work:
        for _, output in engine.step():
            order += [h for h, f in zip(output.handles, output.finish, strict=True) if f]
    assert order == [3, 2, 1]


@pytest.mark.parametrize("num_blocks", [18, 100])
@pytest.mark.parametrize("start", [1, 7, 20])
def test_prompt_scores_are_complete_whatever_the_chunks(num_blocks: int, start: int) -> None:
    engine, _ = make_engine(num_blocks=num_blocks, budget=5)
    inbox = Inbox()
    prompt = [1 + i % (VOCAB - 1) for i in range(21)]
    engine.submit(FRONTEND, request(0, prompt))
    run(engine, inbox)
    for handle in (1, 2):
        scores = PromptLogprobsParams(start=start)
        engine.submit(FRONTEND, request(handle, prompt, n=2, prompt_logprobs=scores))
    run(engine, inbox)
    for handle in (1, 2):
        assert inbox.scores[handle].start == start
        assert inbox.scores[handle].logprobs.ranks.tolist() == prompt[start:]
        assert inbox.cached[handle] >= (start - 1) // 4 * 4 * (num_blocks > 18)


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
