"""The ring between settled steps and outputs: nothing lost, nothing early, nothing mixed up."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.arrays import LogprobArrays
from engine.messages.request import Request
from engine.messages.step_output import Finish, Origin, StepOutput
from engine.planning.outputs import DEPTH, OutputRing, concat_logprobs
from engine.planning.settle import Settled
from engine.rows import Choice
from sampling.params import SamplingParams
from tests.engine.logprob_cases import logprob_arrays


def choice(
    handle: int,
    frontend: bytes = b"f",
    interval: int = 1,
    params: SamplingParams | None = None,
    report_origins: bool = False,
) -> Choice:
    prompt = np.array([1], dtype=np.int32)
    request = Request(
        handle=handle,
        prompt_token_ids=prompt,
        params=params or SamplingParams(),
        max_tokens=99,
        emit_interval=interval,
        report_origins=report_origins,
    )
    return Choice(frontend, request, 0, 0, handle, prompt)


def settled(rows: list[int], tokens: list[int], finish: list[int] | None = None) -> Settled:
    codes = np.array(finish or [0] * len(rows), dtype=np.uint8)
    return Settled(
        rows=np.array(rows, dtype=np.int64),
        token_ids=np.array(tokens, dtype=np.int32)[:, None],
        num_new=(codes != Finish.NAN).astype(np.int64),
        logit_idx=np.arange(len(rows)),
        finish=codes,
        result_idx=np.arange(len(rows)),
        first_drawn=np.zeros(0, dtype=np.int64),
    )


@pytest.mark.parametrize(("interval", "expected"), [(1, 1), (3, 3), (99, DEPTH)])
def test_a_row_is_emitted_when_it_holds_its_interval(interval: int, expected: int) -> None:
    ring = OutputRing(4)
    ring.open(2, choice(1, interval=interval))
    for token in range(expected):
        assert ring.collect() == []
        step = settled([2], [token])
        ring.add(step, None)
    [(_, output)] = ring.collect()
    assert output.token_ids.tolist() == list(range(expected))
    assert ring.collect() == []


def test_logprobs_follow_their_tokens_through_the_ring() -> None:
    """Two rows of different wishes and intervals; a third that wants none."""
    ring = OutputRing(4)
    five = SamplingParams(logprobs=5)
    labels = SamplingParams(logprobs=0, logprob_token_ids=(7, 8))
    ring.open(0, choice(1, interval=2, params=five))
    ring.open(3, choice(2, interval=3, params=labels))
    ring.open(1, choice(3, interval=2))
    given: list[LogprobArrays] = []
    got: dict[int, list[LogprobArrays]] = {1: [], 2: []}
    for step_idx in range(6):
        arrays = logprob_arrays(3, 5, 2)
        given.append(arrays)
        step = settled([0, 1, 3], [step_idx] * 3)
        ring.add(step, arrays)
        for _, output in ring.collect():
            start = 0
            for i, handle in enumerate(output.handles.tolist()):
                end = start + int(output.num_new[i])
                if handle in got:
                    assert output.logprobs is not None
                    got[handle].append(output.logprobs.at(slice(start, end)))
                start = end
    for handle, row, num_top, num_explicit in [(1, 0, 5, 0), (2, 2, 0, 2)]:
        joined = concat_logprobs([(part, len(part.chosen)) for part in got[handle]])
        assert joined is not None
        for field in FIELDS:
            want = np.stack([getattr(arrays, field)[row] for arrays in given])
            have = getattr(joined, field)
            if field.startswith("top"):
                have, want = have[:, :num_top], want[:, :num_top]
            if field == "explicit":
                have, want = have[:, :num_explicit], want[:, :num_explicit]
            np.testing.assert_array_equal(have, want)


FIELDS = LogprobArrays.__struct_fields__


def test_logprobs_of_chosen_tokens_alone_are_reported() -> None:
    """A request for 0 top tokens wants those, as a chat does that asks for logprobs only."""
    ring = OutputRing(1)
    ring.open(0, choice(1, params=SamplingParams(logprobs=0)))
    step, arrays = settled([0], [10]), logprob_arrays(1, 0, 0)
    ring.add(step, arrays)
    [(_, output)] = ring.collect()
    assert output.logprobs is not None
    assert output.logprobs.chosen.tolist() == arrays.chosen.tolist()
    assert output.logprobs.ranks.tolist() == arrays.ranks.tolist()


def test_origins_follow_their_tokens_through_the_ring() -> None:
    """Two rows of two frontends ask, the one between them does not."""
    ring = OutputRing(3, max_new=2)
    for row, frontend in enumerate([b"a", b"b", b"b"]):
        ring.open(row, choice(row, frontend, interval=3, report_origins=row != 1))
    step = Settled(
        rows=np.arange(3),
        token_ids=np.array([[10, 0], [20, 21], [30, 31]], dtype=np.int32),
        num_new=np.array([1, 2, 2]),
        logit_idx=np.arange(3) * 2,
        finish=np.zeros(3, dtype=np.uint8),
        result_idx=np.arange(3),
        first_drawn=np.zeros(0, dtype=np.int64),
        num_offered=np.array([1, 1, 1], dtype=np.int32),
        num_accepted=np.array([0, 1, 1], dtype=np.int32),
    )
    ring.add(step, None)
    ends = settled([0, 1, 2], [11, 22, 32], [Finish.LENGTH] * 3)
    ring.add(ends, None)
    outputs = dict(ring.collect())
    own = outputs[b"a"].origins
    assert own is not None
    assert own.tolist() == [Origin.RECOVERED, Origin.DRAWN]
    assert outputs[b"b"].token_ids.tolist() == [20, 21, 22, 30, 31, 32]
    theirs = outputs[b"b"].origins
    assert theirs is not None
    assert theirs[3:].tolist() == [Origin.ACCEPTED, Origin.BONUS, Origin.DRAWN]


def test_outputs_of_those_who_ask_join_those_of_others() -> None:
    ring = OutputRing(2, max_new=2)
    ring.open(0, choice(1))
    ring.open(1, choice(2, report_origins=True))
    for row in (0, 1):
        step = settled([row], [10 + row])
        ring.add(step, None)
    [(_, output)] = ring.collect()
    assert output.origins is not None
    assert len(output.origins) == len(output.token_ids) == 2
    assert output.origins[1] == Origin.DRAWN


def test_times_are_told_where_the_engine_is_to() -> None:
    quiet, telling = OutputRing(1), OutputRing(1, report_times=True)
    ran, waiting = choice(1), choice(2)
    ran.queued_at, ran.started_at, ran.drew_at = 1.0, 2.0, 3.0
    waiting.queued_at = 1.5
    for ring in (quiet, telling):
        ring.open(0, ran)
        ends = settled([0], [5], [Finish.LENGTH])
        ring.add(ends, None)
        ring.end_waiting([waiting], Finish.ABORT)
    [(_, output)] = quiet.collect()
    assert output.times is None
    [(_, output)] = telling.collect()
    assert output.times is not None
    assert output.times.tolist() == [[1.0, 2.0, 3.0], [1.5, 0.0, 0.0]]


def test_flush_hands_over_what_a_falling_row_holds() -> None:
    ring = OutputRing(2)
    ring.open(0, choice(1, interval=9))
    ring.add(settled([0], [5]), None)
    ring.flush([0])
    [(_, output)] = ring.collect()
    assert output.token_ids.tolist() == [5]
    assert output.finish.tolist() == [Finish.RUNNING]
    ring.flush([0])
    assert ring.collect() == [], "a row that holds nothing says nothing"


def test_nan_rows_emit_what_stands_and_no_token() -> None:
    ring = OutputRing(2)
    ring.open(0, choice(1, interval=9))
    ring.add(settled([0], [5]), None)
    step = settled([0], [0], [Finish.NAN])
    ring.add(step, None)
    [(_, output)] = ring.collect()
    assert output.token_ids.tolist() == [5]
    assert output.finish.tolist() == [Finish.NAN]


def test_frontends_are_told_apart_within_one_emission() -> None:
    ring = OutputRing(3)
    for row, frontend in enumerate([b"a", b"b", b"a"]):
        ring.open(row, choice(row, frontend, params=SamplingParams(logprobs=1)))
    step = settled([0, 1, 2], [10, 11, 12])
    arrays = logprob_arrays(3, 1, 0)
    ring.add(step, arrays)
    outputs = dict(ring.collect())
    assert outputs[b"a"].token_ids.tolist() == [10, 12]
    assert outputs[b"b"].token_ids.tolist() == [11]
    assert outputs[b"b"].logprobs is not None
    assert outputs[b"b"].logprobs.chosen[0] == arrays.chosen[1]


def test_tokens_held_for_several_frontends_are_told_apart() -> None:
    """Two rows of two tokens and one of another frontend between them, with two tokens too."""
    ring = OutputRing(3)
    for row, frontend in enumerate([b"a", b"b", b"a"]):
        ring.open(row, choice(row, frontend, interval=2, params=SamplingParams(logprobs=1)))
    given = []
    for first in (10, 20):
        step = settled([0, 1, 2], [first, first + 1, first + 2])
        given.append(logprob_arrays(3, 1, 0))
        ring.add(step, given[-1])
    outputs = dict(ring.collect())
    assert outputs[b"a"].token_ids.tolist() == [10, 20, 12, 22]
    assert outputs[b"a"].num_new.tolist() == [2, 2]
    assert outputs[b"b"].token_ids.tolist() == [11, 21]
    assert outputs[b"b"].logprobs is not None
    assert outputs[b"b"].logprobs.chosen.tolist() == [each.chosen[1] for each in given]


def test_logprobs_are_kept_while_a_wider_row_comes_in() -> None:
    ring = OutputRing(2)
    one = SamplingParams(logprobs=1, logprob_token_ids=(4,))
    ring.open(0, choice(1, interval=2, params=one))
    first, second = logprob_arrays(1, 1, 1), logprob_arrays(2, 5, 3)
    ring.add(settled([0], [10]), first)
    ring.open(1, choice(2, params=SamplingParams(logprobs=5, logprob_token_ids=(1, 2, 3))))
    step = settled([0, 1], [11, 12])
    ring.add(step, second)
    [(_, output)] = ring.collect()
    assert output.token_ids.tolist() == [10, 11, 12]
    logprobs = output.logprobs
    assert logprobs is not None
    for field in FIELDS:
        have = getattr(logprobs, field)[:2]
        if field in ("top_ids", "top_logprobs", "explicit"):
            have = have[:, :1]
        want = np.concatenate([getattr(first, field), getattr(second.narrow(1, 1), field)[:1]])
        np.testing.assert_array_equal(have, want)
    np.testing.assert_array_equal(logprobs.top_ids[2], second.top_ids[1])
    np.testing.assert_array_equal(logprobs.explicit[2], second.explicit[1])


def test_choices_that_never_ran_end_with_their_reason() -> None:
    ring = OutputRing(1)
    ring.end_waiting([choice(4)], Finish.ERROR, "because")
    ring.end_waiting([choice(5)], Finish.ABORT)
    ring.end_waiting([choice(6)], Finish.ERROR, "for another reason")
    [(frontend, output)] = ring.collect()
    assert frontend == b"f"
    assert output.errors == {4: "because", 6: "for another reason"}
    assert output.finish.tolist() == [Finish.ERROR, Finish.ABORT, Finish.ERROR]
    assert output.num_new.tolist() == [0, 0, 0]


def _wishes(rng: random.Random) -> tuple[bytes, int, SamplingParams, bool]:
    """Frontend, interval, params and whether origins are asked for."""
    ids = tuple(range(rng.randrange(3))) or None
    top = rng.choice([None, None, 0, 2, 4])
    params = SamplingParams(logprobs=top, logprob_token_ids=ids)
    return rng.choice([b"a", b"b"]), rng.choice([1, 1, 1, 3]), params, rng.random() < 0.3


def _step(rng: random.Random, rows: list[int]) -> Settled:
    """A step of up to 3 tokens a row, of which some end and some fail."""
    finish = rng.choices([Finish.RUNNING, Finish.STOP, Finish.NAN], [8, 1, 1], k=len(rows))
    accepted = np.array([rng.randrange(3) for _ in rows], dtype=np.int32)
    return Settled(
        rows=np.array(rows, dtype=np.int64),
        token_ids=np.array([[rng.randrange(99) for _ in range(3)] for _ in rows], dtype=np.int32),
        num_new=np.where(np.array(finish) == Finish.NAN, 0, accepted + 1).astype(np.int64),
        logit_idx=np.array(rng.sample(range(4), len(rows)), dtype=np.int64) * 3,
        finish=np.array(finish, dtype=np.uint8),
        result_idx=np.arange(len(rows)),
        first_drawn=np.zeros(0, dtype=np.int64),
        num_offered=np.full(len(rows), 2, dtype=np.int32),
        num_accepted=accepted,
    )


def _said(output: StepOutput, asked: list[tuple[bytes, int, SamplingParams, bool]]) -> list[object]:
    """What an output says of each entry, without what is undefined."""
    said: list[object] = [output.errors]
    start = 0
    for entry, handle in enumerate(output.handles.tolist()):
        _, _, params, tells_origins = asked[handle]
        end = start + int(output.num_new[entry])
        said += [handle, int(output.finish[entry]), output.token_ids[start:end].tolist()]
        if params.logprobs is not None or params.logprob_token_ids:
            assert output.logprobs is not None
            wide = params.logprobs or 0, len(params.logprob_token_ids or ())
            mine = output.logprobs.at(slice(start, end)).narrow(*wide)
            said += [getattr(mine, name).tolist() for name in FIELDS]
        if tells_origins:
            assert output.origins is not None
            said.append(output.origins[start:end].tolist())
        start = end
    return said


def _add_by_way_of_the_ring(ring: OutputRing, step: Settled, logprobs: LogprobArrays) -> None:
    ring._hold(step, logprobs)
    due = (step.finish != Finish.RUNNING) | (ring._held[step.rows] >= ring._interval[step.rows])
    if due.any():
        ring.emit(step.rows[due], step.finish[due])


@pytest.mark.parametrize("seed", range(30))
def test_a_step_passed_on_says_what_it_would_through_the_ring(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    rings = OutputRing(4, max_new=3), OutputRing(4, max_new=3)
    num_passed = 0

    def counted(step: Settled, logprobs: LogprobArrays | None) -> None:
        nonlocal num_passed
        num_passed += 1
        OutputRing._pass_on(rings[0], step, logprobs)

    monkeypatch.setattr(rings[0], "_pass_on", counted)
    asked = [_wishes(rng) for _ in range(4)]
    for turn in range(100):
        row = turn if turn < 4 else rng.randrange(4)
        frontend, interval, params, tells_origins = asked[row] = _wishes(rng)
        for ring in rings:
            ring.flush([row])
            ring.collect()
            ring.open(row, choice(row, frontend, interval, params, tells_origins))
        rows = rng.sample(range(4), rng.randrange(5)) if turn >= 4 else []
        step, arrays = _step(rng, rows), logprob_arrays(12, 4, 2)
        rings[0].add(step, arrays)
        _add_by_way_of_the_ring(rings[1], step, arrays)
        reported = [[(to, _said(output, asked)) for to, output in ring.collect()] for ring in rings]
        assert reported[0] == reported[1]
    assert num_passed > 20


def test_rows_with_and_without_logprobs_are_joined_at_their_places() -> None:
    """Also where those without come first, in between, last, or bring no token."""
    first, second = logprob_arrays(2, 3, 0), logprob_arrays(1, 1, 2)
    parts = [(None, 2), (first, 2), (None, 0), (None, 3), (second, 1), (None, 1)]
    joined = concat_logprobs(parts)
    assert joined is not None
    assert len(joined.chosen) == 9
    np.testing.assert_array_equal(joined.chosen[2:4], first.chosen)
    np.testing.assert_array_equal(joined.top_ids[2:4], first.top_ids)
    np.testing.assert_array_equal(joined.chosen[7:8], second.chosen)
    np.testing.assert_array_equal(joined.explicit[7:8], second.explicit)
    np.testing.assert_array_equal(joined.top_logprobs[7:8, :1], second.top_logprobs)
    assert concat_logprobs([(None, 4), (None, 1)]) is None


def test_outputs_of_rows_with_and_without_logprobs_keep_them_apart() -> None:
    """Whichever row comes first, and however far each lags."""
    ring = OutputRing(3)
    ring.open(0, choice(1))
    ring.open(1, choice(2, params=SamplingParams(logprobs=2)))
    ring.open(2, choice(3))
    arrays = logprob_arrays(3, 2, 0)
    ring.add(settled([0, 1, 2], [5, 6, 7]), arrays)
    [(_, output)] = ring.collect()
    assert output.logprobs is not None
    start = int(output.num_new[: output.handles.tolist().index(2)].sum())
    assert output.token_ids[start] == 6
    np.testing.assert_array_equal(output.logprobs.chosen[start], arrays.chosen[1])
