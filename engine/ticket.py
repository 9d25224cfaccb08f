"""What comes back of a submitted request, as its frontend reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from engine.request import (
    Finish,
    Int32Array,
    Int64Array,
    ItemScores,
    LogprobArrays,
    PromptScores,
    StepOutput,
)


class EngineDeadError(Exception):
    """The engine process is gone or hung; nothing can be served."""


class Entry(NamedTuple):
    """One entry of a step's output: a view, sliced when asked.

    Attributes:
        output: the step's output.
        entry_idx: of this entry in it.
        start: of this entry's tokens in it.
    """

    output: StepOutput
    entry_idx: int
    start: int

    @property
    def choice(self) -> int:
        """Index of the choice within its request."""
        return int(self.output.choices[self.entry_idx])

    @property
    def num_new(self) -> int:
        """Tokens in this entry."""
        return int(self.output.num_new[self.entry_idx])

    @property
    def token_ids(self) -> Int32Array:
        """int32 [num_new]."""
        return self.output.token_ids[self.start : self.start + self.num_new]

    @property
    def finish(self) -> Finish:
        """RUNNING, or why the choice ended with this entry."""
        return Finish(int(self.output.finish[self.entry_idx]))

    @property
    def num_cached(self) -> int:
        """Prompt tokens served from the prefix cache."""
        return int(self.output.num_cached[self.entry_idx])

    @property
    def drafts(self) -> Int64Array | None:
        """What became of the choice's drafts so far, as `StepOutput.drafts`."""
        counts = self.output.drafts
        return None if counts is None else counts[self.entry_idx]

    @property
    def logprobs(self) -> LogprobArrays | None:
        """Of this entry's tokens, where the step carried any."""
        arrays = self.output.logprobs
        if arrays is None:
            return None
        part = slice(self.start, self.start + self.num_new)
        return LogprobArrays(
            chosen=arrays.chosen[part],
            ranks=arrays.ranks[part],
            top_ids=arrays.top_ids[part],
            top_logprobs=arrays.top_logprobs[part],
            explicit=arrays.explicit[part],
        )

    @property
    def error(self) -> str | None:
        """The message of a choice ended with `Finish.ERROR`."""
        return self.output.errors.get(int(self.output.handles[self.entry_idx]))


class Ticket:
    """A submitted request: iterate for batches of entries until every choice has ended.

    Entries that arrived since the last look come together, so a slow reader coalesces.
    `prompt_scores` is set before the first entry of choice 0 is seen. A scoring request's ticket
    is of one choice without entries: `item_scores` is set when the iteration ends.
    """

    def __init__(self, handle: int, num_choices: int) -> None:
        self.handle = handle
        self.prompt_scores: PromptScores | None = None
        self.item_scores: ItemScores | None = None
        self._unfinished = num_choices
        self._entries: list[Entry] = []
        self._failure: EngineDeadError | None = None
        self._arrived = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether every choice has ended (entries may still wait to be read)."""
        return self._unfinished == 0

    def deliver(self, entry: Entry) -> None:
        """Append an entry; called by the client for each one."""
        self._entries.append(entry)
        if entry.output.finish[entry.entry_idx]:
            self._unfinished -= 1
        self._arrived.set()

    def deliver_scores(self, scores: ItemScores) -> None:
        """End a scoring request; called by the client."""
        self.item_scores = scores
        self._unfinished = 0
        self._arrived.set()

    def fail(self, failure: EngineDeadError) -> None:
        """Let the reader raise `failure`; nothing more will come."""
        self._failure = failure
        self._arrived.set()

    def __aiter__(self) -> Ticket:
        return self

    async def __anext__(self) -> list[Entry]:
        while not self._entries:
            if self._failure is not None:
                raise self._failure
            if self._unfinished == 0:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        entries, self._entries = self._entries, []
        return entries


def deliver_output(output: StepOutput, tickets: Mapping[int, Ticket]) -> list[int]:
    """Hand a step's entries to their tickets; returns handles whose requests have ended."""
    ended = []
    for scores in output.prompt_scores:
        if ticket := tickets.get(scores.handle):
            ticket.prompt_scores = scores
    for ended_scores in output.item_scores:
        if ticket := tickets.get(ended_scores.handle):
            ticket.deliver_scores(ended_scores)
            ended.append(ended_scores.handle)
    start = 0
    counts = output.num_new.tolist()
    for index, handle in enumerate(output.handles.tolist()):
        if ticket := tickets.get(handle):
            ticket.deliver(Entry(output, index, start))
            if ticket.finished:
                ended.append(handle)
        start += counts[index]
    return ended
