"""Pieces of choices taken apart: special tokens, tokens cut by markers, bytes cut by tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.messages.step_output import Finish
from server.conversation.parsing.graph import Graph, make_graph
from server.conversation.parsing.output import Event
from server.conversation.parsing.reader import ParsedPiece, PieceReader, ReplyParsing, content_piece
from server.conversation.parsing.tokens import make_vocabulary
from server.conversation.shaped_render import merged
from server.generation.choice import Piece, ReplyChoice
from server.text.detokenize import ByteDetokenizer
from tests.server.conversation.parsing.corpus import STYLES, WORDS, Style, corpus, markers_of
from tests.server.generation.pieces import entry, form, values


class Written(NamedTuple):
    """A reply as tokens of a vocabulary made for it."""

    token_ids: list[int]
    raw: list[bytes]
    special: dict[str, int]


def write(text: str, draw: random.Random, special: list[str], longest: int = 6) -> Written:
    """Cut a text into tokens, wherever its characters and markers are; special ones stay whole."""
    raw = [marker.encode() for marker in special]
    token_ids: list[int] = []
    rest = text
    while rest:
        places = [(rest.find(marker), i) for i, marker in enumerate(special) if marker in rest]
        end, i = min(places, default=(len(rest), -1))
        chunk = rest[:end].encode()
        while chunk:
            length = draw.randint(1, longest)
            token_ids.append(len(raw))
            raw.append(chunk[:length])
            chunk = chunk[length:]
        rest = rest[end:]
        if i >= 0:
            token_ids.append(i)
            rest = rest[len(special[i]) :]
    return Written(token_ids, raw, {marker: i for i, marker in enumerate(special)})


@cache
def graph_of(style: Style, special: tuple[tuple[str, int], ...]) -> Graph:
    return make_graph(style.reasoning, style.tools, dict(special))


class Read(NamedTuple):
    """All that a reader gave out."""

    events: list[Event]
    token_ids: list[int]
    parts: list[str]
    content: bytes
    values: list[float]
    origins: list[int]


def parsing_of(
    style: Style, written: Written, shows_special: bool = False, state: str | None = None
) -> ReplyParsing:
    texts = [raw.decode(errors="replace") for raw in written.raw]
    words = make_vocabulary(texts, written.raw, written.special)
    graph = graph_of(style, tuple(written.special.items()))
    state = graph.first_state("", "") if state is None else state
    return ReplyParsing(graph, words, {}, state, shows_special, None)


def make_reader(style: Style, written: Written, shows_special: bool = False) -> PieceReader:
    return parsing_of(style, written, shows_special).reader()


def pieces_of(written: Written, counts: list[int]) -> Iterator[Piece]:
    """The tokens in steps of so many, over and over, as pieces of a choice."""
    wanted = form(stream=True, token_starts=True, num_top=0, origins=True)
    choice = ReplyChoice(0, 0, wanted, ByteDetokenizer(written.raw))
    at, turn = 0, 0
    while at < len(written.token_ids) or not turn:
        taken = written.token_ids[at : at + counts[turn % len(counts)]]
        ends = at + len(taken) >= len(written.token_ids)
        finish = Finish.LENGTH if ends else Finish.RUNNING
        origins = [(at + i) % 4 for i in range(len(taken))]
        choice.feed(entry(taken, finish, values(len(taken), first=at), origins=origins))
        if (piece := choice.take()) is not None:
            yield piece
        at, turn = at + len(taken), turn + 1


def read(style: Style, written: Written, counts: list[int], *, shows_special: bool = False) -> Read:
    """Feed the tokens and join what comes."""
    reader = make_reader(style, written, shows_special)
    pieces = [reader.read(piece) for piece in pieces_of(written, counts)]
    assert reader.num_reasoning == sum(piece.parts.count("reasoning") for piece in pieces)
    return joined(pieces, written)


def read_words(style: Style, written: Written, counts: list[int]) -> tuple[list[Event], int]:
    """What a stream that shows no tokens reads: events, joined, and the tokens of reasoning."""
    reader = make_reader(style, written)
    events: list[Event] = []
    for piece in pieces_of(written, counts):
        if piece.first or piece.finish_reason is not None:
            events += reader.read(piece).events
        elif (kind := reader.flow(piece)) is None:
            events += reader.read_events(piece)
        elif kind != "value":
            events.append(Event(kind, piece.text))
    return merged(events), reader.num_reasoning


def joined(pieces: list[ParsedPiece], written: Written) -> Read:
    events: list[Event] = []
    content = b""
    for piece in pieces:
        for event in piece.events:
            if events and events[-1].kind == event.kind != "call":
                events[-1] = Event(event.kind, events[-1].text + event.text)
            else:
                events.append(event)
        for i, (token_id, part) in enumerate(zip(piece.token_ids, piece.parts, strict=True)):
            if i in piece.cuts or part == "content":
                content += piece.cuts.get(i, written.raw[token_id])
        assert len(piece.starts) == len(piece.token_ids)
    return Read(
        events,
        [i for piece in pieces for i in piece.token_ids],
        [part for piece in pieces for part in piece.parts],
        content,
        [float(v) for p in pieces if p.logprobs is not None for v in p.logprobs.chosen],
        [code for piece in pieces for code in piece.origins],
    )


@pytest.mark.parametrize("are_special", [False, True])
@pytest.mark.parametrize("name", STYLES)
def test_every_chunking_is_the_same(name: str, are_special: bool) -> None:
    """Markers as special tokens, or in tokens that begin and end anywhere."""
    draw, style = random.Random(name), STYLES[name]
    special = [m for m in markers_of(style) if m != "functools["] if are_special else []
    for i, reply in enumerate(corpus(name)[are_special::2]):
        written = write(reply.text, draw, special)
        whole = read(style, written, [len(written.token_ids) + 1])
        assert whole.token_ids == written.token_ids
        assert whole.values == [-i for i in range(len(written.token_ids))]
        assert whole.origins == [i % 4 for i in range(len(written.token_ids))]
        shown = "".join(event.text for event in whole.events if event.kind == "content")
        assert whole.content == shown.encode()
        several = [draw.randint(1, 9) for _ in range(5)]
        assert read(style, written, several if i % 3 else [1]) == whole
        words = (whole.events, whole.parts.count("reasoning"))
        assert read_words(style, written, [1] if i % 3 else several) == words


@pytest.mark.parametrize("name", STYLES)
def test_what_is_content_from_end_to_end_needs_no_machine(name: str) -> None:
    """A whole reply that is read without a machine is what the machine makes of it."""
    draw, style, reported = random.Random(name), STYLES[name], 0
    special = [m for m in markers_of(style) if m != "functools["]
    pads = ["", " ", "\n\n", "<", "\ud55c "]
    texts = [reply.text for reply in corpus(name)[::4]] + [f"{pad}{WORDS[0]}{pad}" for pad in pads]
    for text, own, state in product(texts, ([], special), ("start", "answer", "content")):
        written = write(text, draw, own)
        parsing = parsing_of(style, written, state=state)
        if state not in parsing.graph.nodes:
            continue
        [piece] = pieces_of(written, [len(written.token_ids) + 1])
        parsed = parsing.reader().read(piece)
        if parsing.is_content(piece, ends_by_token=False):
            assert parsed.events == content_piece(piece).events
            assert "reasoning" not in parsed.parts
            reported += 1
        assert not parsing.is_content(replace(piece, finish_reason=None), ends_by_token=False)
    assert reported or parsing_of(style, write("", draw, [])).state not in ("start", "content")


def test_a_token_that_ends_a_reply_is_no_marker_in_it() -> None:
    style = STYLES["hermes"]
    written = Written([1, 0], [b"<|im_end|>", b"a"], {"<|im_end|>": 0})
    parsing = parsing_of(style, written)
    [piece] = pieces_of(written, [2])
    assert not parsing.is_content(piece, ends_by_token=False)
    assert parsing.is_content(replace(piece, text="a"), ends_by_token=True)


@pytest.mark.parametrize("counts", [[1], [2], [3], [9]])
@pytest.mark.parametrize("cut", range(1, len("<think>")))
def test_a_stop_string_holds_back_a_piece_of_a_special_token(cut: int, counts: list[int]) -> None:
    """A marker's text may come in two pieces, the second after its token: later tokens keep their
    parts, which are found by their places."""
    style = STYLES["hermes"]
    vocabulary = [b"</think>", b"<think>", b"ab", b"cd"]
    special = {"</think>": 0, "<think>": 1}
    written = Written([1, 2, 3, 0, 2, 3, 2], vocabulary, special)
    whole = read(style, written, [7])
    assert whole.parts == ["markup", *["reasoning"] * 2, "markup", *["content"] * 3]
    reader = make_reader(style, written)
    pieces = []
    held = ""
    for piece in pieces_of(written, counts):
        text = held + piece.text
        is_last = piece.finish_reason is not None
        # The last characters wait, as where a stop string could begin with them.
        keep = 0 if is_last else min(cut, len(text))
        held = text[len(text) - keep :]
        pieces.append(reader.read(replace(piece, text=text[: len(text) - keep])))
    assert joined(pieces, written) == whole


def test_special_tokens_say_what_markers_in_text_say() -> None:
    """As long as no argument holds a marker, which as a token would end the call."""
    draw, compared = random.Random(0), 0
    for name, style in STYLES.items():
        for reply in corpus(name)[::4]:
            inside = "".join(str(arguments) for _, arguments in reply.calls)
            if reply.content is None or any(m in inside for m in markers_of(style)):
                continue
            as_text = read(style, write(reply.text, draw, []), [3])
            as_tokens = read(style, write(reply.text, draw, markers_of(style)), [3])
            assert as_tokens.events == as_text.events
            compared += 1
    assert compared > 250


class TestSpecialTokens:
    STYLE = STYLES["mistral"]

    def test_what_spells_a_special_token_is_text(self) -> None:
        special = markers_of(self.STYLE)
        raw = [*(marker.encode() for marker in special), b"[TOOL_", b"CALLS]x"]
        names = {marker: i for i, marker in enumerate(special)}
        written = Written([len(special), len(special) + 1], raw, names)
        assert read(self.STYLE, written, [1]).events == [Event("content", "[TOOL_CALLS]x")]

    @pytest.mark.parametrize("shows_special", [False, True])
    def test_those_that_are_no_markers(self, shows_special: bool) -> None:
        written = Written([1, 0, 2], [b"<pad>", b"a", b"b"], {"<pad>": 0})
        found = read(self.STYLE, written, [1], shows_special=shows_special)
        assert found.events == [Event("content", "a<pad>b" if shows_special else "ab")]
        assert found.parts == ["content", "content" if shows_special else "markup", "content"]

    def test_a_stop_string_inside_one(self) -> None:
        raw = [b"[TOOL_CALLS]", b"a", b"f"]
        words = make_vocabulary([r.decode() for r in raw], raw, {"[TOOL_CALLS]": 0})
        graph = make_graph(None, self.STYLE.tools, words.special)
        reader = ReplyParsing(graph, words, {}, "start", False, None).reader()
        choice = ReplyChoice(0, 0, form(["CALLS"], token_starts=True), ByteDetokenizer(raw))
        choice.feed(entry([1, 0, 2], Finish.LENGTH))
        piece = choice.take()
        assert piece is not None
        assert piece.text == "a[TOOL_"
        parsed = reader.read(piece)
        assert parsed.events == [Event("content", "a")]
        assert parsed.parts == ["content", "markup"]

    def test_the_token_that_ends_a_choice(self) -> None:
        raw = [b"</s>", b"word"]
        words = make_vocabulary([r.decode() for r in raw], raw, {"</s>": 0})
        graph = make_graph(None, self.STYLE.tools, words.special)
        reader = ReplyParsing(graph, words, {}, "start", False, None).reader()
        choice = ReplyChoice(0, 0, form(token_starts=True), ByteDetokenizer(raw))
        choice.feed(entry([1, 0], Finish.STOP))
        piece = choice.take()
        assert piece is not None
        parsed = reader.read(piece, ends_by_token=True)
        assert (parsed.events, parsed.parts) == ([Event("content", "word")], ["content", "markup"])


def test_a_token_that_the_first_piece_leaves_without_a_part_is_counted() -> None:
    """It ends the thoughts and begins a marker, which the pieces after it go on with."""
    raw = [b"[THINK]", b"th", b"ought[/THINK][/", b"THINK] an", b"swer", b"."]
    written = Written(list(range(len(raw))), raw, {})
    whole = read(STYLES["mistral"], written, [len(raw) + 1])
    assert whole.parts.count("reasoning") == 2
    for counts in ([3, 1], [3, 2], [1], [2]):
        assert read_words(STYLES["mistral"], written, counts) == (whole.events, 2)


@pytest.mark.parametrize(("opening", "kind"), [(b"so", "content"), (b"<think>", "reasoning")])
def test_text_of_one_kind_is_not_read_again(opening: bytes, kind: str) -> None:
    """Most pieces are such, and a stream writes them in a fraction of the time."""
    written = Written([0, 1, 1, 1], [opening, b" word"], {})
    reader = make_reader(STYLES["hermes"], written)
    first, second, third, _ = pieces_of(written, [1])
    reader.read(first)
    reader.read(second)
    assert reader.flow(third) == kind


@settings(max_examples=300)
@given(data=st.data())
def test_drawn_replies(data: st.DataObject) -> None:
    """Replies of pieces that fit together anyhow, as tokens that begin and end anywhere."""
    style = STYLES[data.draw(st.sampled_from(sorted(STYLES)))]
    marks = st.sampled_from([*markers_of(style), style.tools.syntax.trigger])
    words = st.sampled_from(['{"name": "f", ', '"arguments": {"a": "ü"}}', "f(a='x')", "{", "}"])
    spaces = st.sampled_from([" ", "\n", "\n\n        ", "text", "</", "ü🙂"])
    text = "".join(data.draw(st.lists(st.one_of(marks, words, spaces, st.text(max_size=4)))))
    draw = random.Random(data.draw(st.integers(0, 999)))
    special = data.draw(st.sampled_from([[], markers_of(style)]))
    written = write(text, draw, special, data.draw(st.integers(1, 40)))
    whole = read(style, written, [len(written.token_ids) + 1])
    shown = "".join(event.text for event in whole.events if event.kind == "content")
    assert whole.content == shown.encode()
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1))
    assert read(style, written, counts) == whole
    reported = (whole.events, whole.parts.count("reasoning"))
    assert read_words(style, written, counts) == reported


def test_a_token_whose_text_comes_later() -> None:
    """It has its part when its text is there, and not that of the text before."""
    style = STYLES["hermes"]
    written = Written([0, 1, 2], [b"ab", b"\xc3", b"\xbc<tool_call>"], {})
    assert read(style, written, [2, 1]) == read(style, written, [3])
    assert read(style, written, [1]).parts == ["content", "content", "content"]
