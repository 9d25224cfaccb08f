"""What taking a reply apart costs the server a token, on one core.

    python -m benchmarks.bench_parsing

Prints microseconds of CPU time a token, the least of many rounds, for every format: content alone,
calls alone, and a whole reply as an agent gets it (thoughts, a sentence, two calls), in pieces of
one token and of four (a step under speculation). A round takes every format in turn, so that what
disturbs the machine for a while disturbs some rounds and no format. Markers are special tokens
where models have them as such. It fails where a whole reply, or content, takes more than 1.5.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from server.conversation.parsing.graph import make_graph
from server.conversation.parsing.reader import PieceReader, ReplyParsing
from server.conversation.parsing.tokens import make_vocabulary
from server.generation.choice import Piece
from tests.server.conversation.parsing.corpus import STYLES, Reply, Style, wrap

MOST_US = 1.5
ROUNDS, RUNS = 30, 10
WORDS = "The quick brown fox jumps over the lazy dog, and then it sleeps (1 < 2). " * 200
ARGUMENTS: dict[str, Any] = {
    "at": "Paris, in France",
    "days": [1, 2],
    "note": "It's sunny there; take a hat.",
}
THOUGHTS = "They ask for the weather in Paris. I look it up for both days, and then I tell them. "
_SPECIAL = r"</?(?:tool_call|think)>|<[|\uff5c][^>]*[|\uff5c]>|\[/?[A-Z_]+\]"
_TOKEN = re.compile(rf"{_SPECIAL}| ?\w{{1,6}}|[^\w\s<\[]+|[<\[]|\s")


def pieces_of(text: str, count: int) -> tuple[list[str], list[Piece]]:
    """The texts of a reply's tokens, and the reply in pieces of `count` tokens."""
    texts: list[str] = _TOKEN.findall(text)
    pieces, start = [], 0
    for at in range(0, len(texts), count):
        own = texts[at : at + count]
        starts = []
        for each in own:
            starts.append(start)
            start += len(each)
        pieces.append(
            Piece(
                first=not at,
                text="".join(own),
                token_ids=list(range(at, at + len(own))),
                origins=[],
                starts=starts,
                values=None,
                prompt_logprobs=None,
                finish_reason=None,
                stop_reason=None,
                weight_versions=(),
                place=None,
            )
        )
    return texts, pieces


def reading(style_name: str, text: str, count: int) -> tuple[Callable[[], None], int]:
    """What reads a reply once in pieces of `count` tokens, and the number of its tokens."""
    texts, pieces = pieces_of(text, count)
    special = {own: i for i, own in enumerate(texts) if re.fullmatch(_SPECIAL, own)}
    words = make_vocabulary(texts, [own.encode() for own in texts], special)
    for piece in pieces:  # one id for each special token
        piece.token_ids[:] = [special.get(texts[i], i) for i in piece.token_ids]
    style = STYLES[style_name]
    graph = make_graph(style.reasoning, style.tools, special)
    parsing = ReplyParsing(graph, words, {}, "start", False, None)

    def read() -> None:
        reader: PieceReader = parsing.reader()
        flow, read_events = reader.flow, reader.read_events
        for piece in pieces:
            if flow(piece) is None:
                read_events(piece)

    return read, len(texts)


def least_us(works: Sequence[Callable[[], None]]) -> list[float]:
    """The least CPU time that each takes in some rounds, microseconds."""
    least = [math.inf] * len(works)
    for _ in range(ROUNDS):
        for i, work in enumerate(works):
            for _ in range(RUNS):
                began = time.process_time()
                work()
                least[i] = min(least[i], time.process_time() - began)
    return [seconds * 1e6 for seconds in least]


def whole_reply(style: Style) -> str:
    """A reply of thoughts, a sentence and two calls, where the format has each."""
    reply = Reply("", reasoning=THOUGHTS * 2 if style.reasoning else "")
    before = "I look both days up." if style.precedes else ""
    return wrap(style, reply, before, "", style.write([("look", dict(ARGUMENTS))] * 2))


def texts_of(style: Style) -> dict[str, str]:
    """The texts that are read, by kind."""
    calls = style.write([("look", dict(ARGUMENTS)) for _ in range(20)])
    return {"content": WORDS, "calls": calls, "whole": whole_reply(style)}


def main() -> int:
    """Print the table; 1 where a format is slower than it may be."""
    readings = {
        (name, kind, count): reading(name, text, count)
        for name, style in STYLES.items()
        for kind, text in texts_of(style).items()
        for count in (1, 4)
    }
    least = least_us([read for read, _ in readings.values()])
    found = {
        key: us / num_tokens
        for (key, (_, num_tokens)), us in zip(readings.items(), least, strict=True)
    }
    print(f"{'us a token':<20}{'1 token':>10}{'4 tokens':>10}")
    for name, kind, count in found:
        if count == 1:
            one, four = found[name, kind, 1], found[name, kind, 4]
            print(f"{name:<16} {kind:<8}{one:>8.2f}{four:>8.2f}")
    worst = max(us for (_, kind, _), us in found.items() if kind != "calls")
    print(f"slowest content or whole reply: {worst:.2f}, at most {MOST_US}")
    return int(worst > MOST_US)


if __name__ == "__main__":
    sys.exit(main())
