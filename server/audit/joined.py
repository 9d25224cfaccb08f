"""Streams as the replies they join to, as far as tokens and their logprobs go, arrays as lists."""

from __future__ import annotations

from typing import Any

import orjson

from server.text.packed import unpacked

Json = dict[str, Any]


PACKED = {"dtype", "shape", "data"}
"""The keys of a packed array."""
ROUNDED = ("<f2", "bfloat16")
"""Types of arrays that stay packed: their values are not those that were computed."""


class UnreadableReplyError(ValueError):
    """A reply has no form that is known here."""


def joined(reply: Any) -> Json:
    """The reply itself, or that which a stream's chunks join to; packed logprobs are lists.

    Args:
        reply: an object, a list of chunks, or a stream's text with its `data:` lines.

    Raises:
        UnreadableReplyError: it is something else, or an error.
    """
    if isinstance(reply, str):
        reply = events(reply)
    if isinstance(reply, list):
        try:
            reply = _join(reply)
        except (AttributeError, LookupError, TypeError) as error:
            raise UnreadableReplyError(f"the chunks are no stream's: {error!r}") from None
    if not isinstance(reply, dict):
        raise UnreadableReplyError("the reply is no object, list of chunks or stream")
    if "error" in reply:
        raise UnreadableReplyError(
            f"the reply is an error: {orjson.dumps(reply['error']).decode()}"
        )
    if not isinstance(reply.get("choices"), list) or not reply["choices"]:
        raise UnreadableReplyError("the reply has no choices")
    return {**reply, "choices": [_listed(choice) for choice in reply["choices"]]}


def events(text: str) -> list[Json]:
    """The objects of a stream's `data:` lines; the last may be cut off in its middle."""
    # Not `splitlines`: a text may hold other ends of lines, which JSON leaves as they are.
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    found = []
    for i, line in enumerate(lines):
        data = line[5:].strip() if line.startswith("data:") else ""
        try:
            found += [orjson.loads(data)] if data not in ("", "[DONE]") else []
        except orjson.JSONDecodeError:
            if i < len(lines) - 1:
                raise
    return found


def _join(chunks: list[Any]) -> Json:
    choices: dict[int, Json] = {}
    whole: Json = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            raise UnreadableReplyError("a chunk is no object")
        whole |= {key: value for key, value in chunk.items() if key != "choices" and value}
        for part in chunk.get("choices") or []:
            _extend(choices.setdefault(part["index"], {"index": part["index"]}), _listed(part))
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _listed(value: Any) -> Any:
    """A choice whose packed arrays are lists."""
    if not isinstance(value, dict):
        return value
    if value.keys() != PACKED:
        return {key: _listed(own) for key, own in value.items()}
    if value["dtype"] in ROUNDED:
        return value
    try:
        return unpacked(value).tolist()
    except (LookupError, TypeError, ValueError) as error:
        raise UnreadableReplyError(f"a packed array is malformed: {error}") from None


def _extend(choice: Json, part: Json, repeated: str = "prompt_token_ids") -> None:
    """Add a chunk's part to its choice: lists go on, what has a value later replaces.

    Args:
        repeated: the list that each chunk has whole.
    """
    for key, value in part.items():
        if key == "logprobs" and isinstance(value, dict):
            _extend(choice.setdefault(key, {}), value)
        elif key == "logprob_token_ids" and isinstance(value, dict):
            _extend(choice.setdefault(key, {}), value, "token_ids")
        elif isinstance(value, list) and key != repeated:
            choice[key] = [*choice.get(key, ()), *value]
        elif value is not None:
            choice[key] = value
