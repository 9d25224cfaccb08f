"""Errors: what a client got wrong is a 4xx with OpenAI's error object."""

from __future__ import annotations

from typing import Any

from server.conformance.result import Found, NotDoneError
from server.conformance.subject import CHAT, COMPLETIONS, Json, Subject

BAD_FIELDS: tuple[Json, ...] = (
    {"temperature": -1},
    {"max_tokens": -1},
    {"top_p": 2},
    {"n": 0},
    {"prompt": []},
    {"prompt": [-1]},
    {"max_tokens": "many"},
    {"logprobs": -5},
    {"stop": [5]},
)
BAD_BODIES = (b"{", b"[]", b"", b'{"prompt": NaN}')


def bad_fields(subject: Subject) -> Found:
    """A field out of its bounds is a 4xx."""
    taken = []
    for fields in BAD_FIELDS:
        body = {"prompt": "a", "max_tokens": 1, **fields}
        status = subject.send(COMPLETIONS, body).status
        if not 400 <= status < 500:
            taken.append(f"{fields} is {status}")
    return Found(passed=not taken, measured="; ".join(taken)[:160] or f"{len(BAD_FIELDS)} refused")


def error_object(subject: Subject) -> Found:
    """An error names its message, type, param and code in an object `error`."""
    replies = (subject.send(COMPLETIONS, {"prompt": "a", **fields}) for fields in BAD_FIELDS)
    refusal = next((reply for reply in replies if 400 <= reply.status < 500), None)
    if refusal is None:
        raise NotDoneError("not judged", "it refuses nothing")
    error = _error(refusal.json())
    missing = {"message", "type", "param", "code"} - set(error or {})
    words = "no error object" if error is None else f"without {', '.join(sorted(missing))}"
    return Found(passed=not missing, measured=words if missing else "all four")


def bodies(subject: Subject) -> Found:
    """A body that is no JSON object is a 4xx."""
    taken = []
    for path in (COMPLETIONS, CHAT):
        for body in BAD_BODIES:
            status = subject.remote.post(path, body).status
            if not 400 <= status < 500:
                taken.append(f"{body.decode()!r} is {status}")
    return Found(passed=not taken, measured="; ".join(dict.fromkeys(taken)) or "all refused")


def unknown_model(subject: Subject) -> Found:
    """A model that is not there is a 404."""
    body = {"model": "no-such-model", "prompt": "a", "max_tokens": 1}
    reply = subject.remote.post(COMPLETIONS, body)
    return Found(passed=reply.status == 404, measured=str(reply.status), wanted="404")


def context_length(subject: Subject) -> Found:
    """A prompt longer than the context is a 4xx that says so."""
    body = {"prompt": [1] * 2_000_000, "max_tokens": 1}
    reply = subject.send(COMPLETIONS, body)
    passed = 400 <= reply.status < 500
    return Found(passed=passed, measured=str(reply.status), wanted="4xx")


def _error(content: Any) -> Json | None:
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, dict) else None
