"""What clients get where the engine cannot answer."""

from __future__ import annotations

import pytest

from engine.messages.step_output import Finish
from engine.submission import EngineDeadError
from server.http.admission import ShutdownError
from server.http.failures import failed_request, lost_engine


def test_a_dead_engine_is_not_a_server_that_shuts_down() -> None:
    dead = lost_engine(EngineDeadError("killed"))
    assert (dead.status, dead.code) == (500, "engine_dead")
    assert "killed" in dead.message
    leaving = lost_engine(ShutdownError("too late"))
    assert (leaving.status, leaving.code) == (503, "shutting_down")


@pytest.mark.parametrize(
    ("finish", "message", "code", "words"),
    [
        (Finish.NAN, None, "nan_logits", "NaN or +Inf"),
        (Finish.ERROR, "out of memory", "engine_error", "out of memory"),
        (Finish.ERROR, None, "engine_error", "the engine's step failed"),
        (Finish.ABORT, None, "aborted", "ended the request"),
    ],
)
def test_failed_requests(finish: Finish, message: str | None, code: str, words: str) -> None:
    error = failed_request(finish, message)
    assert (error.status, error.code) == (500, code)
    assert words in error.message
