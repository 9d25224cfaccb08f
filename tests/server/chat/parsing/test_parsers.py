"""Formats by template or flag, and what the prompt says of where a reply begins."""

from __future__ import annotations

import numpy as np
import pytest

from server.chat.parsing.parsers import Parsers
from tests.fakes import byte_tokenizer

QWEN = "<tool_call> arguments </think>"


def parsers(tools: str = "auto", reasoning: str = "auto") -> Parsers:
    tokenizer = byte_tokenizer()
    tokenizer.reserve(264)
    return Parsers(tokenizer, tools, reasoning)


def prompt(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def test_formats_by_template_and_by_flag() -> None:
    own = parsers()
    assert own.tool_format(QWEN) is not None
    assert own.tool_format("plain") is None
    assert own.reasoning_format("plain") is None
    named = parsers("mistral", "none")
    tools = named.tool_format(QWEN)
    assert tools is not None
    assert tools.names == ("mistral",)
    assert named.reasoning_format(QWEN) is None
    assert parsers("none").tool_format(QWEN) is None
    assert parsers("none").leaves_calls
    assert not own.leaves_calls


def test_nothing_to_look_for() -> None:
    assert parsers().parsing("plain", None, prompt("x")) is None
    assert parsers(reasoning="none").parsing(QWEN, None, prompt("x")) is None
    assert parsers(reasoning="none").parsing(QWEN, {}, prompt("x")) is not None


@pytest.mark.parametrize(
    ("end", "continued", "state", "answers_behind"),
    [
        ("assistant\n", "", "start", True),
        ("assistant\n<think>\n", "", "reasoning", True),
        ("<think>\n\n</think>\n\n", "", "answer", False),
        ("It was", "It was", "content", False),
    ],
)
def test_where_a_reply_begins(end: str, continued: str, state: str, answers_behind: bool) -> None:
    """A grammar waits for the end of thoughts wherever there may be some."""
    found = parsers().parsing(QWEN, None, prompt(f"hello {end}"), continued=continued)
    assert found is not None
    assert found.state == state
    assert found.answer_after == (tuple(b"</think>") if answers_behind else ())


def test_one_graph_for_all_requests() -> None:
    own = parsers()
    first, second = (own.parsing(QWEN, {}, prompt("x")) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.graph is second.graph
