"""What clients get where the engine cannot answer their requests."""

from __future__ import annotations

from engine.messages.step_output import Finish
from engine.submission import EngineDeadError
from server.errors import ApiError, aborted, engine_dead, replica_lost, shutting_down
from server.http.admission import ShutdownError


class ReplicaLostError(EngineDeadError):
    """One of several replicas is gone; the others serve."""


def lost_engine(error: EngineDeadError) -> ApiError:
    """The error of a request whose engine is gone, or is not waited for any longer."""
    if isinstance(error, ReplicaLostError):
        return replica_lost(str(error))
    return shutting_down() if isinstance(error, ShutdownError) else engine_dead(str(error))


def failed_request(finish: Finish, message: str | None) -> ApiError:
    """The error of a request that the engine ended; `message` is the engine's own."""
    if finish == Finish.NAN:
        words = "no token could be drawn: the model's logits had NaN or +Inf, or none finite"
        return ApiError(500, words, code="nan_logits")
    if finish == Finish.EMPTY:
        words = (
            "no token could be drawn: the request's masks (grammar, allowed_token_ids, bad_words, "
            "min_tokens) left none"
        )
        return ApiError(400, words, code="no_token_allowed")
    if finish == Finish.TOO_COMPLEX:
        return ApiError(400, message or "the grammar is too large", code="grammar_too_large")
    if finish == Finish.GRAMMAR:
        words = f"the grammar could not be followed: {message or 'its matcher failed'}"
        return ApiError(500, words, code="grammar_failed")
    if finish == Finish.ERROR:
        return ApiError(500, message or "the engine's step failed", code="engine_error")
    if finish == Finish.ADAPTER:
        words = message or "the adapter is not there any more"
        return ApiError(404, words, param="model", code="model_not_found")
    if finish == Finish.CANCELED:
        return aborted()
    return ApiError(500, "the engine ended the request", code="aborted")
