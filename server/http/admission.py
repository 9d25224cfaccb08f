"""Who may come in: the queue's limit, and the set of what is being generated."""

from __future__ import annotations

from engine.client import EngineHandle
from engine.submission import EngineDeadError, Submission
from server.errors import overloaded


class ShutdownError(EngineDeadError):
    """The engine lives, but the server does not wait for it any longer."""


class AdmissionControl:
    """Counts prompts between submission and end.

    A prompt waits when it is beyond the engine's rows, or when the engine says so (a full KV
    cache); whichever count is larger is held against the limit.
    """

    def __init__(self, engine: EngineHandle, max_waiting: int) -> None:
        self._engine = engine
        self._max_waiting = max_waiting
        self._tickets: dict[int, Submission] = {}

    @property
    def num_in_flight(self) -> int:
        """Prompts submitted and not ended."""
        return len(self._tickets)

    def check(self, num_prompts: int) -> None:
        """Raise a 429 unless so many more prompts may come in."""
        stats = self._engine.stats
        beyond_rows = self.num_in_flight + num_prompts - self._engine.info.max_rows
        reported = stats.num_waiting if stats is not None and self._tickets else 0
        waiting = max(beyond_rows, reported + num_prompts if reported else 0)
        if waiting > self._max_waiting:
            raise overloaded(
                f"too many prompts are waiting: with this request {waiting}, "
                f"at most {self._max_waiting} (--max-waiting-requests)"
            )

    def enter(self, submission: Submission) -> None:
        """Count a submitted prompt."""
        self._tickets[submission.handle] = submission

    def leave(self, submission: Submission) -> None:
        """Stop counting it; twice does no harm."""
        self._tickets.pop(submission.handle, None)

    def fail_all(self, error: EngineDeadError) -> None:
        """Let every reader of a submission raise `error`."""
        for submission in list(self._tickets.values()):
            submission.fail(error)
