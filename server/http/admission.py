"""Which requests may come in: the queue's limit, and the set of what the engine works at."""

from __future__ import annotations

from collections.abc import Callable

from engine.client import EngineHandle
from engine.contracts.control import EngineState
from engine.submission import EngineDeadError, Submission
from server.errors import held, overloaded
from server.fronts import FrontTable


class ShutdownError(EngineDeadError):
    """The engine lives, but the server does not wait for it any longer."""


def check_not_refusing(state: EngineState) -> None:
    """Raise a 503 where requests that come now are not to wait for the engine."""
    if not (state.refuses and state.is_held):
        return
    if state.asleep:
        raise held(f"the engine sleeps ({', '.join(state.asleep)}): POST /wake_up", "asleep")
    if state.lacks_weights:
        words = "the engine let its weights go, and waits for all of them to be written again"
        raise held(words, "no_weights")
    raise held("the engine is paused: POST /resume", "paused")


class AdmissionControl:
    """Counts choices from admission to their ends, a scoring request as one.

    The count is one of all fronts. A choice waits when it is beyond the engine's rows, or when the
    engine reports it as waiting (a full KV cache); whichever count is larger is held against the
    limit.
    """

    def __init__(
        self,
        engine: EngineHandle,
        max_waiting: int,
        fronts: FrontTable,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the books.

        Args:
            max_waiting: the limit of choices that wait.
            on_refusal: called for each request that it turns away.
        """
        self._engine = engine
        self._on_refusal = on_refusal
        self._max_waiting = max_waiting
        self._fronts = fronts
        self._submissions: dict[int, Submission] = {}

    @property
    def num_in_flight(self) -> int:
        """The number of choices that all fronts have admitted and not released."""
        return self._fronts.num_in_flight

    def admit(self, num_choices: int) -> None:
        """Count so many more choices; raises a 429 where they are too many.

        A 503 where the engine is held and requests are not to wait for it.
        """
        check_not_refusing(self._engine.state)
        stats = self._engine.stats
        # Entered before it is looked at: of two fronts that do so at once, at least one sees both.
        self._fronts.add_in_flight(num_choices)
        in_flight = self._fronts.num_in_flight
        reported = stats.num_waiting if stats is not None and in_flight > num_choices else 0
        beyond_rows = in_flight - self._engine.info.max_rows
        waiting = max(beyond_rows, reported + num_choices if reported else 0)
        if waiting > self._max_waiting:
            self.release(num_choices)
            self._on_refusal()
            raise overloaded(
                f"too many choices are waiting: with this request {waiting}, "
                f"at most {self._max_waiting} (--max-waiting-requests)"
            )

    def release(self, num_choices: int) -> None:
        """Stop counting choices that were admitted."""
        self._fronts.add_in_flight(-num_choices)

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
