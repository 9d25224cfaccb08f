"""Which requests may come in: the queue's limit, and the set of what the engine works at."""

from __future__ import annotations

from engine.client import EngineHandle
from engine.submission import EngineDeadError, Submission
from server.errors import overloaded


class ShutdownError(EngineDeadError):
    """The engine lives, but the server does not wait for it any longer."""


class AdmissionControl:
    """Counts choices from admission to their ends, a scoring request as one.

    A choice waits when it is beyond the engine's rows, or when the engine reports it as waiting (a
    full KV cache); whichever count is larger is held against the limit.
    """

    def __init__(self, engine: EngineHandle, max_waiting: int) -> None:
        self._engine = engine
        self._max_waiting = max_waiting
        self._num_in_flight = 0
        self._submissions: dict[int, Submission] = {}

    @property
    def num_in_flight(self) -> int:
        """The number of choices admitted and not released."""
        return self._num_in_flight

    def admit(self, num_choices: int) -> None:
        """Count so many more choices; raises a 429 where they are too many."""
        stats = self._engine.stats
        beyond_rows = self._num_in_flight + num_choices - self._engine.info.max_rows
        reported = stats.num_waiting if stats is not None and self._num_in_flight else 0
        waiting = max(beyond_rows, reported + num_choices if reported else 0)
        if waiting > self._max_waiting:
            raise overloaded(
                f"too many choices are waiting: with this request {waiting}, "
                f"at most {self._max_waiting} (--max-waiting-requests)"
            )
        self._num_in_flight += num_choices

    def release(self, num_choices: int) -> None:
        """Stop counting choices that were admitted."""
        self._num_in_flight -= num_choices

    def enter(self, submission: Submission) -> None:
        """Let `fail_all` reach the reader of a submission."""
        self._submissions[submission.handle] = submission

    def leave(self, submission: Submission) -> None:
        """Forget a submission; twice does no harm."""
        self._submissions.pop(submission.handle, None)

    def fail_all(self, error: EngineDeadError) -> None:
        """Let every reader of a submission raise `error`."""
        for submission in list(self._submissions.values()):
            submission.fail(error)
