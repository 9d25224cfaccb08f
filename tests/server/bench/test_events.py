"""Events are counted alike however the stream is cut, and no text is taken for one."""

from __future__ import annotations

import json

import pytest

from server.bench.events import EventTimes, error_message, one_line, usage_of

HOSTILE = 'data: {"choices":[]} "error"\n\n\\"'
CHUNK = json.dumps(
    {"choices": [{"text": HOSTILE, "logprobs": {"tokens": ["error"]}}], "usage": None}
)
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
STREAM = "".join(f"data: {data}\n\n" for data in (CHUNK, CHUNK, USAGE, "[DONE]")).encode()


@pytest.mark.parametrize("width", [1, 2, 7, len(STREAM)])
def test_any_cut_gives_the_same_events(width: int) -> None:
    times = EventTimes()
    for i in range(0, len(STREAM), width):
        times.feed(STREAM[i : i + width], 10.0 + i)
    assert times.num_events == 2
    assert times.usage == {"prompt_tokens": 3, "completion_tokens": 4}
    assert times.failure is None
    whole = width == len(STREAM)
    assert len(times.gaps) == (0 if whole else 1)
    assert times.last - times.first == sum(times.gaps)


def test_times_are_of_chunks_with_a_choice() -> None:
    times = EventTimes()
    chunk, usage = (f"data:{data}\r\n\r\n".encode() for data in (CHUNK, USAGE))
    for now, part in ((1.0, chunk), (1.5, b": ping\n\n"), (3.0, chunk + chunk), (9.0, usage)):
        times.feed(part, now)
    assert (times.first, times.last, list(times.gaps), times.num_events) == (1.0, 3.0, [2.0], 3)


def test_an_error_in_the_stream() -> None:
    times = EventTimes()
    times.feed(b'data: {"error": {"message": "it\\nbroke"}}\n\ndata: [DONE]\n\n', 1.0)
    assert (times.failure, times.num_events, times.usage) == ("it broke", 0, None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m", "code": 1}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": {}}', None),
        (b'{"choices": []}', None),
        (b"[1]", None),
        (b"<html>", None),
    ],
)
def test_messages_of_errors(body: bytes, message: str | None) -> None:
    assert error_message(body) == message


def test_a_line_is_short_and_moves_no_cursor() -> None:
    assert one_line("a\x1b[2J\r\n b") == "a?[2J b"
    assert len(one_line("x" * 10_000)) == 300


def test_usage_of_replies() -> None:
    assert usage_of(b'{"usage": {"prompt_tokens": 1}}') == {"prompt_tokens": 1}
    assert usage_of(b'{"usage": null}') is None
    assert usage_of(b"[]") is None
    with pytest.raises(ValueError, match="char"):
        usage_of(b"no")
