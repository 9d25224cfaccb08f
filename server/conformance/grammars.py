"""Grammars: replies that must be JSON are, of the schema, at any temperature and under any seed."""

from __future__ import annotations

import json
import re
from typing import Any

from server.conformance.result import Found, NotDoneError
from server.conformance.subject import CHAT, COMPLETIONS, Json, Subject, parsed

NUM_REPLIES = 6
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer"},
        "exact": {"type": "boolean"},
    },
    "required": ["color", "count", "exact"],
    "additionalProperties": False,
}


def _contents(subject: Subject, response_format: Json) -> list[str]:
    """The finished contents of chats under a format; unfinished ones are left out."""
    found = []
    for seed in range(NUM_REPLIES):
        body = {
            "messages": [{"role": "user", "content": "A color, a count, and whether it is exact."}],
            "max_tokens": 200,
            "temperature": 1,
            "seed": seed,
            "response_format": response_format,
        }
        choice = parsed(subject.send(CHAT, body), CHAT)["choices"][0]
        if choice.get("finish_reason") == "stop":
            found.append(str(choice["message"].get("content")))
    if not found:
        raise NotDoneError("not judged", "no reply ended within 200 tokens")
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def json_schema(subject: Subject) -> Found:
    """Every finished reply is of the schema that was asked for."""
    kind = {"type": "json_schema", "json_schema": {"name": "made", "schema": SCHEMA}}
    contents = _contents(subject, kind)
    wrong = [text for text in contents if not _is_of_schema(_value(text))]
    words = f"{len(wrong)} of {len(contents)} are not" + (f": {wrong[0][:40]!r}" if wrong else "")
    return Found(passed=not wrong, measured=words, wanted="0")


def _is_of_schema(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"color", "count", "exact"}
        and value["color"] in ("red", "green", "blue")
        and type(value["count"]) is int
        and type(value["exact"]) is bool
    )


def json_object(subject: Subject) -> Found:
    """Every finished reply is a JSON object."""
    contents = _contents(subject, {"type": "json_object"})
    wrong = [text for text in contents if not isinstance(_value(text), dict)]
    return Found(passed=not wrong, measured=f"{len(wrong)} of {len(contents)} are not", wanted="0")


def regex(subject: Subject) -> Found:
    """Completions under a regular expression match it."""
    body = {
        **subject.neutral,
        "prompt": subject.prompt,
        "max_tokens": 24,
        "structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"},
    }
    texts = [subject.ask(COMPLETIONS, {**body, "seed": i})["choices"][0]["text"] for i in range(4)]
    wrong = [text for text in texts if not re.fullmatch("[0-9]{3}-[a-f]{2}", text)]
    words = f"{len(wrong)} of {len(texts)} do not" + (f": {wrong[0][:30]!r}" if wrong else "")
    return Found(passed=not wrong, measured=words, wanted="0")
