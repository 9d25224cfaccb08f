"""Histograms of where choices spend their time, on a clock of the test's own."""

from __future__ import annotations

import numpy as np
import pytest

from engine.messages.request import Request
from engine.planning import timings as module
from engine.planning.timings import PREEMPTIONS, SECONDS, STEP_TOKENS, TOKEN_SECONDS, Timings
from engine.rows import Choice
from engine.stats import HistogramStats
from sampling.params import SamplingParams


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def choice() -> Choice:
    prompt = np.zeros(3, dtype=np.int32)
    request = Request(handle=1, prompt_token_ids=prompt, params=SamplingParams(), max_tokens=9)
    return Choice(b"", request, 0, 0, 1, prompt)


def only(stats: HistogramStats, bounds: tuple[float, ...]) -> float:
    """The bound of the bucket that holds the one value."""
    (idx,) = np.flatnonzero(stats.counts)
    assert stats.counts[idx] == 1
    return [*bounds, float("inf")][idx]


def test_each_phase_has_its_time(clock: Clock) -> None:
    timings, one = Timings(), choice()
    timings.queued([one])
    clock.now += 0.2
    timings.started([one])
    clock.now += 2
    timings.started([one])  # again, after a preemption
    clock.now += 1
    timings.drew([one])
    clock.now += 20
    assert not any(timings.stats().queue.counts)  # it has not ended
    timings.ended(one, num_drawn=5)
    found = timings.stats()
    assert found.queue.total == pytest.approx(0.2)
    assert found.prefill.total == pytest.approx(3)
    assert found.decode.total == pytest.approx(20)
    assert found.inference.total == pytest.approx(23)
    ends = [only(each, SECONDS) for each in (found.queue, found.prefill, found.decode)]
    assert ends == [0.25, 5, 30]
    assert found.later_token.total == pytest.approx(20 / 4)
    assert only(found.later_token, TOKEN_SECONDS) == 5


def test_a_lone_token_has_no_time_between(clock: Clock) -> None:
    timings, one = Timings(), choice()
    one.num_preemptions = 3
    timings.queued([one])
    timings.started([one])
    timings.drew([one])
    timings.ended(one, num_drawn=1)
    found = timings.stats()
    assert not any(found.later_token.counts)
    assert only(found.preemptions, PREEMPTIONS) == 5
    assert found.preemptions.total == 3


def test_the_first_token_of_a_request_counts_at_once(clock: Clock) -> None:
    timings, one, other = Timings(), choice(), choice()
    other.index = 1
    timings.queued([one, other])
    clock.now += 3
    timings.drew([one, other])
    found = timings.stats().first_token
    assert only(found, SECONDS) == 5
    assert found.total == pytest.approx(3)


def test_who_never_drew_is_not_counted(clock: Clock) -> None:
    timings, one = Timings(), choice()
    timings.queued([one])
    timings.ended(one, num_drawn=5)
    timings.started([one])
    timings.ended(one, num_drawn=5)
    assert not any(timings.stats().queue.counts)


def test_a_value_on_a_bound_is_counted_up_to_it() -> None:
    for tokens, bound in ((1, 1), (8, 8), (9, 16), (16384, 16384), (16385, float("inf"))):
        timings = Timings()
        timings.stepped(tokens)
        assert only(timings.stats().step_tokens, STEP_TOKENS) == bound
        assert timings.stats().step_tokens.total == tokens
