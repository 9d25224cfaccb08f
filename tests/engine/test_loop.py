"""The loop of the engine process, round by round, over an engine that notes its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import zmq
from msgspec import structs

from engine import awake as awake_module
from engine import loop as loop_module
from engine.awake import AwakeClock
from engine.config import EngineConfig, ModelConfig
from engine.loop import FRESH_S, SILENCE_S, STATS_S, EngineLoop, Frontends
from engine.messages.codec import decode_output, encode
from engine.messages.request import FrontendMessage, Request, ScoringRequest
from engine.messages.step_output import Finish, ItemScores, StepOutput
from engine.planning.outputs import empty_output
from engine.stats import EngineStats
from sampling.params import SamplingParams
from tests.engine.some_stats import STATS

CONFIG = EngineConfig(model=ModelConfig(model="none"))


class LoggedEngine:
    """Notes what the loop asks of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes, int]] = []
        self.has_work = True
        self.only_waits = False
        self.held, self.has_drafter_weights = self, False
        self.adapters = None
        self.outputs: list[tuple[bytes, StepOutput]] = []

    def on_compiled(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def submit(self, frontend: bytes, request: Request) -> None:
        self.calls.append(("submit", frontend, request.handle))

    def score(self, frontend: bytes, request: ScoringRequest) -> None:
        self.calls.append(("score", frontend, request.handle))

    def abort(self, frontend: bytes, handle: int, choice_idx: int) -> None:
        self.calls.append((f"abort {choice_idx}", frontend, handle))

    def abort_all(self, frontend: bytes) -> None:
        self.calls.append(("abort all", frontend, 0))

    def stats(self) -> EngineStats:
        return STATS


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def run(self, seconds: float, look: Callable[[], object]) -> None:
        """Let so much time pass in which the process runs, and looks as often as it should."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            look()


class LoopSetup:
    """An `EngineLoop` whose rounds the test runs, and a frontend."""

    def __init__(self, address: str) -> None:
        self.engine = LoggedEngine()
        self.loop = EngineLoop(CONFIG, address, cast(Any, self.engine))
        self.frontend: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.frontend.setsockopt(zmq.IDENTITY, b"me")
        self.frontend.connect(address)

    def receive(self, *raws: bytes, num_calls: int = 1) -> None:
        """Send messages and let the loop receive until it has made as many calls."""
        for raw in raws:
            self.frontend.send(raw)
        while len(self.engine.calls) < num_calls:
            assert self.loop._socket.poll(5000)
            self.loop._receive()

    def answer(self) -> StepOutput | None:
        """What the frontend was sent, if anything was."""
        return decode_output(self.frontend.recv()) if self.frontend.poll(100) else None


@pytest.fixture
def loop_setup(tmp_path: Path) -> Iterator[LoopSetup]:
    setup = LoopSetup(f"ipc://{tmp_path}/engine")
    socket = setup.loop._socket
    yield setup
    setup.frontend.close(linger=0)
    socket.close(linger=0)


def asked(handle: int) -> Request:
    ids = np.array([5], dtype=np.int32)
    return Request(handle=handle, prompt_token_ids=ids, params=SamplingParams(), max_tokens=1)


def test_messages_are_taken_in_order_and_what_is_none_is_passed_over(
    loop_setup: LoopSetup, caplog: pytest.LogCaptureFixture
) -> None:
    scored = ScoringRequest(
        handle=3,
        query_token_ids=np.array([1], dtype=np.int32),
        item_token_ids=np.array([2], dtype=np.int32),
        item_lens=np.array([1], dtype=np.int32),
        num_read=np.array([1], dtype=np.int32),
        id_lists=np.array([[3]], dtype=np.int32),
    )
    first = FrontendMessage(submit=[asked(1), asked(2)], score=[scored], abort=[(1, -1), (2, 0)])
    last = encode(FrontendMessage(submit=[asked(4)]))
    loop_setup.receive(encode(first), b"garbage", last, num_calls=6)
    assert loop_setup.engine.calls == [
        ("submit", b"me", 1),
        ("submit", b"me", 2),
        ("score", b"me", 3),
        ("abort -1", b"me", 1),
        ("abort 0", b"me", 2),
        ("submit", b"me", 4),
    ]
    assert "passed over" in caplog.text


def clock_since_the_first(loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the loop knows its frontends, unmoved since it heard a request."""
    clock = Clock()
    monkeypatch.setattr(loop_module, "time", clock)
    loop_setup.receive(encode(FrontendMessage(submit=[asked(1)])))
    return clock


def test_a_frontend_without_news_is_sent_statistics_now_and_then(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_since_the_first(loop_setup, monkeypatch)
    loop_setup.loop._send_stats()
    clock.now += STATS_S - 0.1
    loop_setup.receive(encode(FrontendMessage(submit=[asked(2)])), num_calls=2)
    loop_setup.loop._send_stats()
    assert loop_setup.answer() is None
    clock.now += 0.2
    loop_setup.loop._send_stats()
    answer = loop_setup.answer()
    assert answer is not None
    assert answer.stats == STATS
    assert len(answer.handles) == 0
    clock.now += STATS_S - 0.1
    loop_setup.loop._send_stats()
    assert loop_setup.answer() is None, "it was reported a moment ago"


def output(finish: Finish) -> StepOutput:
    """An output of one entry, as an engine makes it."""
    one = np.zeros(1, dtype=np.int32)
    return StepOutput(
        handles=one.astype(np.int64),
        choices=one,
        num_new=one,
        finish=np.array([finish], dtype=np.uint8),
        num_cached=one,
        token_ids=one[:0],
    )


def test_an_output_has_statistics_where_a_choice_ends_or_the_last_ones_are_old(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_since_the_first(loop_setup, monkeypatch)
    reported = []
    for finish, passed in [
        (Finish.RUNNING, 0.0),  # the first
        (Finish.RUNNING, 0.0),
        (Finish.RUNNING, 0.6 * FRESH_S),
        (Finish.RUNNING, 0.6 * FRESH_S),
        (Finish.RUNNING, 0.0),
        (Finish.STOP, 0.0),
        (Finish.RUNNING, 0.0),
    ]:
        clock.now += passed
        loop_setup.loop._send(b"another", output(Finish.ABORT))  # what others hear is their own
        loop_setup.loop._send(b"me", output(finish))
        answer = loop_setup.answer()
        assert answer is not None
        assert answer.finish.tolist() == [finish]
        reported.append(answer.stats == STATS)
    assert reported == [True, False, False, True, False, True, False]


def test_statistics_behind_the_last_output_follow_once_the_ones_before_are_old(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long step may come then, and admission counts who waited before it."""
    clock = clock_since_the_first(loop_setup, monkeypatch)
    for _ in range(2):  # the second comes without
        clock.now += 0.4 * FRESH_S
        loop_setup.loop._send(b"me", output(Finish.RUNNING))
        loop_setup.loop._send_stats()
        assert loop_setup.answer() is not None
    assert loop_setup.answer() is None
    for passed, follows in ((0.4, False), (0.4, True), (5.0, False)):
        clock.now += passed * FRESH_S
        loop_setup.loop._send_stats()
        answer = loop_setup.answer()
        assert (answer is not None) == follows
        assert answer is None or answer.stats == STATS


def test_the_scores_of_a_request_come_with_statistics(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "time", Clock())
    loop_setup.receive(encode(FrontendMessage(submit=[asked(1)])))
    none = np.zeros((0, 1), dtype=np.float32)
    scores = ItemScores(
        handle=1,
        finish=Finish.LENGTH,
        num_cached=0,
        values=none,
        others=none[:, 0],
        best_ids=none[:, 0].astype(np.int32),
        best=none[:, 0],
        log_sums=none[:, 0].astype(np.float64),
    )
    for _ in range(2):
        scored = structs.replace(output(Finish.RUNNING), item_scores=[scores])
        loop_setup.loop._send(b"me", scored)
        answer = loop_setup.answer()
        assert answer is not None
        assert answer.stats == STATS


def test_the_end_of_work_is_told_to_those_it_was_not_for(loop_setup: LoopSetup) -> None:
    loop_setup.receive(encode(FrontendMessage(submit=[asked(1)])))
    loop_setup.loop._send_stats({b"another"})
    assert loop_setup.answer() is None, "work goes on"
    loop_setup.engine.has_work = False
    loop_setup.loop._send_stats({b"me"})
    assert loop_setup.answer() is None, "it was reported just now"
    loop_setup.loop._send_stats()
    assert loop_setup.answer() is None, "nothing ended"
    loop_setup.loop._send_stats({b"another"})
    assert loop_setup.answer() is not None


def test_a_silent_frontend_has_its_requests_aborted_once_and_gets_nothing_more(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = Clock(), loop_setup.engine.calls
    monkeypatch.setattr(awake_module, "time", clock)
    loop_setup.loop._frontends = Frontends()
    look = loop_setup.loop._abort_silent
    loop_setup.receive(encode(FrontendMessage(submit=[asked(1)])))
    clock.run(SILENCE_S - 0.2, look)
    assert ("abort all", b"me", 0) not in calls
    loop_setup.receive(
        encode(FrontendMessage()), encode(FrontendMessage(abort=[(1, 0)])), num_calls=2
    )
    clock.run(SILENCE_S - 0.2, look)
    assert ("abort all", b"me", 0) not in calls, "an empty message is a sign of life"
    clock.run(0.4, look)
    assert calls[2:] == [("abort all", b"me", 0)]
    loop_setup.loop._send_stats()
    assert loop_setup.answer() is None
    loop_setup.receive(encode(FrontendMessage(submit=[asked(2)])), num_calls=4)
    monkeypatch.setattr(loop_module, "time", clock)
    clock.now = time.monotonic() + STATS_S + 0.1
    loop_setup.loop._send_stats()
    assert loop_setup.answer() is not None, "one that was stopped and goes on is known again"


def test_time_in_which_the_engine_was_stopped_too_is_no_silence(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a container is paused: on the far side nobody has had time to say anything."""
    clock, calls = Clock(), loop_setup.engine.calls
    monkeypatch.setattr(awake_module, "time", clock)
    loop_setup.loop._frontends = Frontends()
    loop_setup.receive(encode(FrontendMessage(submit=[asked(1)])))
    clock.now += 100 * SILENCE_S
    clock.run(SILENCE_S - 2, loop_setup.loop._abort_silent)
    assert ("abort all", b"me", 0) not in calls
    clock.run(2.2, loop_setup.loop._abort_silent)
    assert ("abort all", b"me", 0) in calls


def test_a_frontend_whose_socket_ended_loses_its_requests_with_the_next_output(
    loop_setup: LoopSetup, caplog: pytest.LogCaptureFixture
) -> None:
    loop_setup.receive(encode(FrontendMessage(submit=[asked(1)])))
    output = empty_output(STATS)
    loop_setup.loop._send(b"me", output)
    assert loop_setup.answer() is not None
    loop_setup.frontend.close(linger=0)
    for _ in range(500):
        loop_setup.loop._send(b"me", output)
        if loop_setup.engine.calls[1:]:
            break
        time.sleep(0.01)
    assert loop_setup.engine.calls[1:] == [("abort all", b"me", 0)]
    loop_setup.loop._send(b"me", output)  # of the same step
    assert caplog.text.count("a frontend has ended") == 1
    assert not loop_setup.loop._frontends.known


def test_a_round_that_takes_longer_than_a_step_may_is_hung(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(awake_module, "time", clock)
    loop, seen = loop_setup.loop, []
    loop._awake = AwakeClock()

    class RoundEndedError(Exception):
        pass

    def step() -> list[tuple[bytes, StepOutput]]:
        clock.now += 10 * CONFIG.step_timeout_s  # stopped with everything else
        clock.run(CONFIG.step_timeout_s - 2, loop.look)
        seen.append(loop.look())
        clock.run(2, loop.look)
        seen.append(loop.look())
        raise RoundEndedError

    monkeypatch.setattr(loop_setup.engine, "step", step, raising=False)
    clock.run(2 * CONFIG.step_timeout_s, loop.look)
    assert not loop.look()
    with pytest.raises(RoundEndedError):
        loop.run()
    assert seen == [False, True]


def test_a_loop_that_waits_for_a_message_is_not_hung(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(awake_module, "time", clock)
    loop_setup.loop._awake = AwakeClock()
    loop, engine, seen = loop_setup.loop, loop_setup.engine, []

    class WaitedEnoughError(Exception):
        pass

    def step() -> list[tuple[bytes, StepOutput]]:
        engine.has_work = False
        return []

    def poll() -> None:
        clock.run(2 * CONFIG.step_timeout_s, loop.look)
        seen.append(loop.look())
        raise WaitedEnoughError

    monkeypatch.setattr(engine, "step", step, raising=False)
    monkeypatch.setattr(loop, "_poller", SimpleNamespace(poll=poll))
    monkeypatch.setattr(loop, "_socket", SimpleNamespace(get=lambda option: 0))
    with pytest.raises(WaitedEnoughError):
        loop.run()
    assert seen == [False]


def test_a_compile_that_ends_wakes_the_loop_and_a_loop_without_one_sleeps(
    loop_setup: LoopSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, engine = loop_setup.loop, loop_setup.engine
    engine.has_work = False
    woken_by: list[float] = []

    class WokenError(Exception):
        pass

    def step() -> list[tuple[bytes, StepOutput]]:
        woken_by.append(time.monotonic())
        if len(woken_by) == 2:
            raise WokenError
        return []

    monkeypatch.setattr(engine, "step", step, raising=False)
    rung_at: list[float] = []

    def ring() -> None:
        for i in range(2):
            while len(woken_by) < i:  # two rings of which none was heard yet would be one
                time.sleep(0.01)
            time.sleep(0.2)
            rung_at.append(time.monotonic())
            engine.wake()

    thread = threading.Thread(target=ring)
    thread.start()
    with pytest.raises(WokenError):
        loop.run()
    thread.join()
    assert [woken > rung for woken, rung in zip(woken_by, rung_at, strict=True)] == [True, True]


def test_the_wait_for_a_lone_step_ends_with_it_or_with_a_message(loop_setup: LoopSetup) -> None:
    """What has come is launched behind the step, while that is computed."""
    loop, engine = loop_setup.loop, loop_setup.engine
    loop._await_step()
    engine.only_waits = True
    threading.Timer(0.1, setattr, (engine, "only_waits", False)).start()
    loop._await_step()
    engine.only_waits = True
    loop_setup.frontend.send(encode(FrontendMessage(submit=[asked(1)])))
    loop._await_step()
    assert loop._has_message
    loop_setup.receive()
    assert engine.calls == [("submit", b"me", 1)]
    assert not loop._has_message
