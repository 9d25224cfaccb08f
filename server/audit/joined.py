"""Streams as the replies they join to, as far as tokens and their logprobs go."""

from __future__ import annotations

from typing import Any

import orjson

Json = dict[str, Any]


class UnreadableReplyError(ValueError):
    """A reply has no form that is known here."""


def joined(reply: Any) -> Json:
    """The reply itself, or that which a stream's chunks join to.

    Args:
        reply: an object, a list of chunks, or a stream's text with its `data:` lines.

    Raises:
        UnreadableReplyError: it is something else, or an error.
    """
    if isinstance(reply, str):
        reply = events(reply)
    if isinstance(reply, list):
        reply = _join(reply)
    if not isinstance(reply, dict):
        raise UnreadableReplyError("the reply is no object, list of chunks or stream")
    if "error" in reply:
        raise UnreadableReplyError(
            f"the reply is an error: {orjson.dumps(reply['error']).decode()}"
        )
    if not isinstance(reply.get("choices"), list):
        raise UnreadableReplyError("the reply has no choices")
    return reply


def events(text: str) -> list[Json]:
    """The objects of a stream's `data:` lines."""
    lines = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
    return [orjson.loads(line) for line in lines if line and line != "[DONE]"]


def _join(chunks: list[Any]) -> Json:
    choices: dict[int, Json] = {}
    whole: Json = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            raise UnreadableReplyError("a chunk is no object")
        whole |= {key: value for key, value in chunk.items() if key != "choices" and value}
        for part in chunk.get("choices") or []:
            _extend(choices.setdefault(part["index"], {"index": part["index"]}), part)
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _extend(choice: Json, part: Json) -> None:
    """Add a chunk's part to its choice: lists go on, what has a value later replaces."""
    for key, value in part.items():
        if key == "logprobs" and isinstance(value, dict):
            _extend(choice.setdefault("logprobs", {}), value)
        elif isinstance(value, list) and key != "prompt_token_ids":
            choice[key] = [*choice.get(key, ()), *value]
        elif value is not None:
            choice[key] = value
