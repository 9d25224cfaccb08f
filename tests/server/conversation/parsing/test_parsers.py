"""Formats by template or flag, and what the prompt says of where a reply begins."""

from __future__ import annotations

import pytest

from server.conversation.parsing.formats.lfm2 import LFM2
from server.conversation.parsing.learning.learn import Formats
from server.conversation.parsing.parsers import Parsers
from server.conversation.parsing.reader import ThoughtIds
from tests.fakes import byte_tokenizer

QWEN = "<tool_call> arguments </think>"


def parsers(tools: str = "auto", reasoning: str = "auto") -> Parsers:
    tokenizer = byte_tokenizer()
    tokenizer.reserve(264)
    return Parsers(tokenizer, tools, reasoning)


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
    assert parsers().parsing("plain", None, "x") is None
    assert parsers(reasoning="none").parsing(QWEN, None, "x") is None
    assert parsers(reasoning="none").parsing(QWEN, {}, "x") is not None


@pytest.mark.parametrize(
    ("end", "continued", "state", "may_come", "may_be_skipped"),
    [
        ("assistant\n", "", "start", True, True),
        ("assistant\n<think>\n", "", "reasoning", True, False),
        ("<think>\n\n</think>\n\n", "", "answer", False, False),
        ("It was", "It was", "content", False, False),
    ],
)
def test_where_a_reply_begins(
    end: str, continued: str, state: str, may_come: bool, may_be_skipped: bool
) -> None:
    found = parsers().parsing(QWEN, None, f"hello {end}", continued=continued)
    assert found is not None
    assert found.state == state
    assert found.thoughts == ThoughtIds(
        begin=tuple(b"<think>"),
        end=tuple(b"</think>"),
        answer=tuple(b"</think>"),
        are_open=state == "reasoning",
        may_come=may_come,
        may_be_skipped=may_be_skipped,
    )


def test_channels_wait_for_their_answer() -> None:
    found = parsers().parsing("<|channel|> <|message|>", None, "<|start|>assistant")
    assert found is not None
    assert found.thoughts is not None
    assert found.thoughts.end == tuple(b"<|end|>")
    assert found.thoughts.answer == tuple(b"<|channel|>final<|message|>")
    assert (found.thoughts.may_come, found.thoughts.may_be_skipped) == (True, False)


def test_one_graph_for_all_requests() -> None:
    own = parsers()
    first, second = (own.parsing(QWEN, {}, "x") for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.graph is second.graph


async def test_a_template_is_asked_once_and_flags_count_more() -> None:
    asked: list[str] = []

    async def learn(source: str) -> Formats:
        asked.append(source)
        return Formats(LFM2, None)

    own, named = parsers(), parsers("mistral")
    assert own.tool_format(QWEN) is not LFM2  # by its words, as long as it was not asked
    for _ in range(3):
        await own.learn(QWEN, learn)
    await named.learn(QWEN, learn)
    assert own.tool_format(QWEN) is LFM2
    assert asked == [QWEN, QWEN]
    tools = named.tool_format(QWEN)
    assert tools is not None
    assert tools.names == ("mistral",)


async def test_the_last_templates_are_remembered() -> None:
    asked: list[str] = []

    async def learn(source: str) -> Formats:
        asked.append(source)
        return Formats(None, None)

    own = parsers()
    for i in range(65):
        await own.learn(str(i), learn)
    await own.learn("64", learn)
    await own.learn("0", learn)
    assert asked == [*map(str, range(65)), "0"]
