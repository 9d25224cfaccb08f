"""What a frontend reads of its submissions, from outputs made by hand."""

from __future__ import annotations

import asyncio
import weakref

import numpy as np
import pytest

from engine.arrays import Int32Array
from engine.messages.step_output import Finish, ItemScores, PromptLogprobs, StepOutput
from engine.submission import (
    MOST_SHARED,
    EngineDeadError,
    Entry,
    Submission,
    deliver_output,
    entries_of,
)
from tests.engine.logprob_cases import logprob_arrays
from tests.engine.some_stats import STATS

Row = tuple[int, int, list[int], Finish]


def output(*rows: Row, num_cached: int = 0, **fields: object) -> StepOutput:
    """Entries (handle, choice, tokens, finish)."""
    return StepOutput(
        handles=np.array([row[0] for row in rows], dtype=np.int64),
        choices=np.array([row[1] for row in rows], dtype=np.int32),
        num_new=np.array([len(row[2]) for row in rows], dtype=np.int32),
        finish=np.array([row[3] for row in rows], dtype=np.uint8),
        num_cached=np.array([num_cached + i for i in range(len(rows))], dtype=np.int32),
        token_ids=np.array([token for row in rows for token in row[2]], dtype=np.int32),
        stats=STATS,
        **fields,  # type: ignore[arg-type]
    )


def tokens(entries: list[Entry]) -> list[list[int]]:
    return [entry.token_ids.tolist() for entry in entries]


RUNNING, STOP, LENGTH = Finish.RUNNING, Finish.STOP, Finish.LENGTH


def test_each_entry_has_its_part_of_every_array() -> None:
    arrays = logprob_arrays(4, 2, 1)
    drafts = np.arange(9, dtype=np.int64).reshape(3, 3)
    step = output(
        (5, 0, [1, 2], RUNNING),
        (5, 1, [], Finish.ERROR),
        (6, 0, [3, 4], STOP),
        num_cached=10,
        logprobs=arrays,
        drafts=drafts,
        origins=np.array([1, 2, 0, 3], dtype=np.uint8),
        errors={5: "why"},
    )
    first, second, third = entries_of(step)
    assert tokens([first, second, third]) == [[1, 2], [], [3, 4]]
    assert [each.choice for each in (first, second, third)] == [0, 1, 0]
    assert [each.finish for each in (first, second, third)] == [RUNNING, Finish.ERROR, STOP]
    assert [each.num_cached for each in (first, second, third)] == [10, 11, 12]
    assert (second.error, third.error) == ("why", None)
    assert third.drafts is not None
    assert third.drafts.tolist() == [6, 7, 8]
    assert third.origins is not None
    assert third.origins.tolist() == [0, 3]
    assert third.logprobs is not None
    for field in arrays.__struct_fields__:
        np.testing.assert_array_equal(getattr(third.logprobs, field), getattr(arrays, field)[2:])


def test_a_reader_that_lags_keeps_few_outputs_of_whole_steps() -> None:
    """What it reads at last is what it would have read at once."""
    submission, read_at_once = Submission(5, 1), list[Entry]()
    outputs: list[weakref.ref[Int32Array]] = []
    for number in range(200):
        step = output(
            (4, 0, [number] * 3, RUNNING),
            (5, 0, [number, 7], Finish.ERROR if number == 199 else RUNNING),
            logprobs=logprob_arrays(5, 2, 1),
            drafts=np.arange(6, dtype=np.int64).reshape(2, 3) + number,
            origins=np.array([1, 2, 0, 3, 1], dtype=np.uint8),
            times=np.arange(6.0).reshape(2, 3),
            errors={5: "why", 4: "other"},
            weight_version=f"v{number}",
            weight_tag=f"t{number}",
        )
        outputs.append(weakref.ref(step.token_ids))
        deliver_output(step, {5: submission})
        if number in (0, 100, 199):
            read_at_once.append(entries_of(step)[1])
    late = submission.take()
    for wanted, number in zip(read_at_once, (0, 100, 199), strict=True):
        entry = late[number]
        assert entry[3:] == wanted[3:]
        assert (entry.error, entry.weight_version) == (wanted.error, wanted.weight_version)
        assert entry.output.weight_tag == wanted.output.weight_tag
        for name in ("token_ids", "drafts", "origins", "times"):
            np.testing.assert_array_equal(getattr(entry, name), getattr(wanted, name))
        assert entry.logprobs is not None
        assert wanted.logprobs is not None
        for field in wanted.logprobs.__struct_fields__:
            values = getattr(wanted.logprobs, field)
            np.testing.assert_array_equal(getattr(entry.logprobs, field), values)
    del step, wanted, values, read_at_once
    assert sum(array() is not None for array in outputs) == MOST_SHARED


def test_an_output_without_logprobs_or_drafts_has_entries_without() -> None:
    [entry] = entries_of(output((1, 0, [2], RUNNING)))
    assert entry.logprobs is None
    assert entry.drafts is None


def test_entries_reach_their_submissions_and_ends_are_returned() -> None:
    submissions = {1: Submission(1, 2), 2: Submission(2, 1)}
    step = output((1, 0, [7], STOP), (2, 0, [8], LENGTH), (3, 0, [9], STOP), (1, 1, [6], RUNNING))
    assert deliver_output(step, submissions) == [2], "one choice of two has ended, 3 is unknown"
    assert tokens(submissions[1].take()) == [[7], [6]]
    assert tokens(submissions[2].take()) == [[8]]
    assert (submissions[1].finished, submissions[2].finished) == (False, True)
    assert deliver_output(output((1, 1, [], LENGTH)), submissions) == [1]
    assert submissions[1].finished


def test_prompt_logprobs_are_there_with_the_first_entry() -> None:
    submissions = {1: Submission(1, 1), 2: Submission(2, 1)}
    logprobs = PromptLogprobs(handle=1, start=1, logprobs=logprob_arrays(3, 0, 0))
    step = output((1, 0, [7], RUNNING), prompt_logprobs=[logprobs])
    assert deliver_output(step, submissions) == []
    assert submissions[1].prompt_logprobs is logprobs
    assert submissions[2].prompt_logprobs is None


async def test_item_scores_end_a_submission_without_entries() -> None:
    submission = Submission(4, 1)
    scores = ItemScores(
        handle=4,
        finish=LENGTH,
        num_cached=0,
        values=np.zeros((1, 1), dtype=np.float32),
        others=np.zeros(1, dtype=np.float32),
        best_ids=np.zeros(1, dtype=np.int32),
        best=np.zeros(1, dtype=np.float32),
        log_sums=np.zeros(1),
    )
    assert deliver_output(output(item_scores=[scores]), {4: submission}) == [4]
    assert submission.finished
    assert [entries async for entries in submission] == []
    assert submission.item_scores is scores


async def read(submission: Submission) -> list[list[list[int]]]:
    return [tokens(entries) async for entries in submission]


async def test_a_slow_reader_gets_lists_and_a_fast_one_each_entry() -> None:
    submission = Submission(1, 1)
    reader = asyncio.create_task(read(submission))
    await asyncio.sleep(0)
    for step in (output((1, 0, [1], RUNNING)), output((1, 0, [2], RUNNING))):
        deliver_output(step, {1: submission})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    deliver_output(output((1, 0, [3], STOP)), {1: submission})
    assert await asyncio.wait_for(reader, 30) == [[[1], [2]], [[3]]]


async def test_a_failure_comes_after_the_entries_that_are_there() -> None:
    submission = Submission(1, 1)
    deliver_output(output((1, 0, [1], RUNNING)), {1: submission})
    submission.fail(EngineDeadError("gone"))
    assert tokens(await anext(submission)) == [[1]]
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            await asyncio.wait_for(anext(submission), 30)


async def test_a_failure_wakes_a_reader_that_waits() -> None:
    submission = Submission(1, 1)
    reader = asyncio.create_task(read(submission))
    await asyncio.sleep(0)
    submission.fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(reader, 30)


async def test_submissions_may_share_an_event() -> None:
    shared = asyncio.Event()
    submissions = {handle: Submission(handle, 1) for handle in (1, 2)}
    for submission in submissions.values():
        submission.arrived = shared
    deliver_output(output((2, 0, [1], STOP)), submissions)
    assert shared.is_set()
    assert submissions[1].take() == []
    assert tokens(submissions[2].take()) == [[1]]
