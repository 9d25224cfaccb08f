"""`Submission`: a submitted request as its frontend reads it, entry by entry."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from engine.arrays import Float64Array, Int32Array, Int64Array, LogprobArrays, UInt8Array
from engine.messages.step_output import ChoiceRoutes, Finish, ItemScores, PromptLogprobs, StepOutput


class EngineDeadError(Exception):
    """The engine process is gone or hung; nothing can be served."""


_FINISHES = tuple(Finish)
MOST_SHARED = 16
"""Entries of a submission that may wait to be read as views of whole steps' outputs: what comes
beyond them is copied, so that a slow reader does not keep the outputs of all others."""


class Entry(NamedTuple):
    """One entry of a step's output; its arrays are views, sliced when asked for.

    Attributes:
        output: the step's output.
        entry_idx: index of this entry in the output.
        start: index of this entry's first token in the output.
        num_new: tokens in this entry.
        choice: index of the choice within its request.
        finish: RUNNING, or why the choice ended with this entry.
        num_cached: prompt tokens served from the prefix cache.
    """

    output: StepOutput
    entry_idx: int
    start: int
    num_new: int
    choice: int
    finish: Finish
    num_cached: int

    @property
    def token_ids(self) -> Int32Array:
        """The tokens of this entry, int32 [num_new]."""
        return self.output.token_ids[self.start : self.start + self.num_new]

    @property
    def drafts(self) -> Int64Array | None:
        """Counts of the choice's drafts so far, int64 [2 + k]; None without a drafter."""
        counts = self.output.drafts
        return None if counts is None else counts[self.entry_idx]

    @property
    def times(self) -> Float64Array | None:
        """When the choice was submitted, got a row and drew, float64 [3]; see `StepOutput`."""
        times = self.output.times
        return None if times is None else times[self.entry_idx]

    @property
    def logprobs(self) -> LogprobArrays | None:
        """Logprobs of this entry's tokens; None where no entry of the output asked for any."""
        arrays = self.output.logprobs
        return None if arrays is None else arrays.at(slice(self.start, self.start + self.num_new))

    @property
    def origins(self) -> UInt8Array | None:
        """`Origin` codes of this entry's tokens, undefined where the request asked for none.

        None where no entry of the output asked, or where nothing is drafted.
        """
        codes = self.output.origins
        return None if codes is None else codes[self.start : self.start + self.num_new]

    def apart(self) -> Entry:
        """The same entry in an output of its own, in memory of its own."""
        output, own = self.output, slice(self.entry_idx, self.entry_idx + 1)
        logprobs, origins, drafts, times = self.logprobs, self.origins, output.drafts, output.times
        alone = StepOutput(
            handles=output.handles[own].copy(),
            choices=output.choices[own].copy(),
            num_new=output.num_new[own].copy(),
            finish=output.finish[own].copy(),
            num_cached=output.num_cached[own].copy(),
            token_ids=self.token_ids.copy(),
            logprobs=None if logprobs is None else logprobs.copy(),
            origins=None if origins is None else origins.copy(),
            errors={} if self.error is None else {int(output.handles[self.entry_idx]): self.error},
            drafts=None if drafts is None else drafts[own].copy(),
            times=None if times is None else times[own].copy(),
            weight_version=output.weight_version,
            weight_tag=output.weight_tag,
        )
        return self._replace(output=alone, entry_idx=0, start=0)

    @property
    def weight_version(self) -> str:
        """The version of the weights by which this entry's tokens were drawn."""
        return self.output.weight_version

    @property
    def error(self) -> str | None:
        """The message of a choice ended with `Finish.ERROR`."""
        return self.output.errors.get(int(self.output.handles[self.entry_idx]))


class Submission:
    """A submitted request: iterate over it for lists of entries until every choice has ended.

    Entries that arrived since the last look come in one list. `prompt_logprobs` is set before the
    first entry of choice 0 is seen, or its parts wait in `prompt_parts` to be taken; `routes` of a
    choice, before its last entry is. The
    submission of a scoring request has one choice without entries; `item_scores` is set when the
    iteration ends.

    Attributes:
        arrived: set when there is something to read; a reader of several submissions may let them
            share one event.
    """

    def __init__(self, handle: int, num_choices: int) -> None:
        self.handle = handle
        self.arrived = asyncio.Event()
        self.prompt_logprobs: PromptLogprobs | None = None
        self.prompt_parts: list[PromptLogprobs] = []
        self.item_scores: ItemScores | None = None
        self.routes: dict[int, ChoiceRoutes] = {}
        self._unfinished = num_choices
        self._entries: list[Entry] = []
        self._failure: EngineDeadError | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice has ended (entries may still wait to be read)."""
        return self._unfinished == 0

    def deliver(self, entry: Entry) -> None:
        """Append an entry. The client calls this."""
        self._entries.append(entry if len(self._entries) < MOST_SHARED else entry.apart())
        if entry.finish != Finish.RUNNING:
            self._unfinished -= 1
        self.arrived.set()

    def deliver_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Keep what is reported of the prompt. The client calls this."""
        if logprobs.is_part:
            self.prompt_parts.append(logprobs)
            self.arrived.set()
        else:
            self.prompt_logprobs = logprobs

    def take_prompt_parts(self) -> list[PromptLogprobs]:
        """The parts of the prompt's logprobs that arrived since the last look."""
        parts, self.prompt_parts = self.prompt_parts, []
        return parts

    def deliver_scores(self, scores: ItemScores) -> None:
        """End a scoring request. The client calls this."""
        self.item_scores = scores
        self._unfinished = 0
        self.arrived.set()

    def fail(self, failure: EngineDeadError) -> None:
        """Let the reader raise `failure` after the entries that are there."""
        self._failure = failure
        self.arrived.set()

    def __aiter__(self) -> Submission:
        return self

    async def __anext__(self) -> list[Entry]:
        while not (entries := self.take()):
            if self._unfinished == 0:
                raise StopAsyncIteration
            self.arrived.clear()
            await self.arrived.wait()
        return entries

    def take(self) -> list[Entry]:
        """The entries that arrived since the last look; raises the failure once there are none."""
        if not self._entries and self._failure is not None:
            raise self._failure
        entries, self._entries = self._entries, []
        return entries


def entries_of(output: StepOutput) -> list[Entry]:
    """The entries of an output. Numbers are converted for all entries at once."""
    counts = output.num_new.tolist()
    columns = zip(
        accumulate(counts, initial=0),
        counts,
        output.choices.tolist(),
        map(_FINISHES.__getitem__, output.finish.tolist()),
        output.num_cached.tolist(),
        strict=False,  # the starts have one more
    )
    return [Entry(output, index, *numbers) for index, numbers in enumerate(columns)]


def deliver_output(output: StepOutput, submissions: Mapping[int, Submission]) -> list[int]:
    """Give an output's entries to their submissions; returns handles of requests that ended."""
    ended = []
    for prompt_logprobs in output.prompt_logprobs:
        if submission := submissions.get(prompt_logprobs.handle):
            submission.deliver_prompt_logprobs(prompt_logprobs)
    for routes in output.routes:
        if submission := submissions.get(routes.handle):
            submission.routes[routes.choice] = routes
    for scores in output.item_scores:
        if submission := submissions.get(scores.handle):
            submission.deliver_scores(scores)
            ended.append(scores.handle)
    for handle, entry in zip(output.handles.tolist(), entries_of(output), strict=True):
        if submission := submissions.get(handle):
            submission.deliver(entry)
            if submission.finished:
                ended.append(handle)
    return ended
