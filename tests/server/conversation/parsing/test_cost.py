"""What taking a reply apart costs beside writing it as it is."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from engine.messages.step_output import Finish
from server.conversation.parsing.graph import make_graph
from server.conversation.parsing.reader import PieceReader, ReplyParsing
from server.conversation.parsing.tokens import make_vocabulary
from server.generation.choice import Piece, ReplyChoice
from server.text.detokenize import ByteDetokenizer
from tests.server.conversation.parsing.corpus import STYLES
from tests.server.generation.pieces import entry, form
from tests.server.slowness import fastest, slowness

WORDS = "The quick brown fox jumps over the lazy dog, and then it sleeps (1 < 2). " * 100
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Paris, in France", "days": [1, 2]}}\n'
TEXTS = {
    "content": WORDS,
    "reasoning": f"<think>\n{WORDS}",
    "calls": f"{CALL}</tool_call>\n" * 40,
}
LIMIT_S = {"content": 1e-6, "reasoning": 1e-6, "calls": 5e-6}
"""A token may take a reader so long on an idle core; half as long was measured."""
# Chunks of one token are the dearest; a step of four costs a third a token.


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("count", [1, 64])
def test_a_token_takes_a_microsecond_or_so(name: str, count: int) -> None:
    raw = [word.encode() for word in re.findall(r" ?\w{1,6}|[^\w\s]+|\s", TEXTS[name])]
    ids = np.arange(len(raw)).tolist()
    words = make_vocabulary([own.decode() for own in raw], raw, {})
    graph = make_graph(STYLES["hermes"].reasoning, STYLES["hermes"].tools, {})
    parsing = ReplyParsing(graph, words, {}, "start", False, None)
    choice = ReplyChoice(0, 0, form(stream=True, token_starts=True), ByteDetokenizer(raw))
    pieces: list[Piece] = []
    for at in range(0, len(ids), count):
        choice.feed(entry(ids[at : at + count], Finish.RUNNING))
        if (piece := choice.take()) is not None:
            pieces.append(piece)

    def read() -> None:
        step = _step(parsing.reader())
        for piece in pieces:
            step(piece)

    assert fastest(read, 25) < 2 * LIMIT_S[name] * len(ids) * slowness()


def _step(reader: PieceReader) -> Callable[[Piece], object]:
    def step(piece: Piece) -> object:
        return reader.flow(piece) or reader.read_events(piece)

    return step
