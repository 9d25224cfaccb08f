"""Corpora of every format: what replies say, and that no way of cutting them changes it."""

from __future__ import annotations

import json
import random

import pytest

from server.conversation.parsing.format import Part
from server.conversation.parsing.output import Span
from tests.server.conversation.parsing.corpus import STYLES, Reply, Style, corpus, markers_of
from tests.server.conversation.parsing.parsed import calls_of, parse, text_of


def cut(text: str, draw: random.Random, longest: int) -> list[str]:
    """The text in chunks of drawn lengths."""
    chunks = []
    while text:
        length = draw.randint(1, longest)
        chunks.append(text[:length])
        text = text[length:]
    return chunks


@pytest.mark.parametrize("name", STYLES)
class TestCorpus:
    def test_it_says_what_was_written(self, name: str) -> None:
        for reply in corpus(name):
            if reply.content is None:
                continue
            events, _ = parse(STYLES[name], [reply.text])
            assert text_of(events, "content") == reply.content, reply.text
            assert text_of(events, "reasoning") == reply.reasoning, reply.text
            found = [(called, json.loads(arguments)) for called, arguments in calls_of(events)]
            assert found == [(n, _as_json(STYLES[name], args)) for n, args in reply.calls], (
                reply.text
            )

    def test_no_cut_changes_it(self, name: str) -> None:
        draw = random.Random(name)
        for reply in corpus(name):
            whole = parse(STYLES[name], [reply.text])
            for longest in (1, 4, 30):
                assert parse(STYLES[name], cut(reply.text, draw, longest)) == whole, reply.text

    def test_no_marker_is_shown_and_nothing_is_lost(self, name: str) -> None:
        """Of broken replies too: every character has its part, shown ones are shown once."""
        style = STYLES[name]
        for reply in corpus(name):
            events, spans = parse(style, [reply.text])
            assert (spans[-1][0] if spans else 0) == len(reply.text)
            shown: dict[Part, str] = {"reasoning": "", "content": ""}
            start = 0
            for end, part in spans:
                if part in shown:
                    shown[part] += reply.text[start:end]
                start = end
            assert shown["content"] == text_of(events, "content")
            assert shown["reasoning"] == text_of(events, "reasoning")
            for marker in markers_of(style):
                assert all(marker not in text for text in _runs(reply, spans)), reply.text


def _runs(reply: Reply, spans: list[Span]) -> list[str]:
    """Stretches of content; a marker that a call's removal joins together is none."""
    starts = [0, *(end for end, _ in spans)]
    return [
        reply.text[start:end]
        for start, (end, part) in zip(starts, spans, strict=False)
        if part == "content"
    ]


def _as_json(style: Style, arguments: dict[str, object]) -> dict[str, object]:
    """Arguments as a reader without a schema has them: text that spells JSON is that JSON."""
    if not style.spells:
        return arguments
    return {key: _spelt(value) for key, value in arguments.items()}


def _spelt(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        spelt: object = json.loads(value)
    except ValueError:
        return value
    return value if isinstance(spelt, str) else spelt
