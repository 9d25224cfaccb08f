"""Single replies by their formats: what breaks, what is cut, what is held back."""

# ruff: noqa: RUF001

from __future__ import annotations

import ast
import json

import pytest

from server.conversation.parsing.body import MAX_KEY
from server.conversation.parsing.format import START
from server.conversation.parsing.formats.known import REASONING_PARSERS
from server.conversation.parsing.graph import MAX_FIELD, make_graph
from server.conversation.parsing.machine import MAX_WAITING, Machine
from server.conversation.parsing.output import Event
from tests.server.conversation.parsing.corpus import STYLES
from tests.server.conversation.parsing.parsed import calls_of, parse, text_of

GOOD = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        # A body that breaks before its call is accepted is content, markers aside.
        ("hermes", "<tool_call>{nonsense}</tool_call>", "{nonsense}", []),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', '{"name": 3}', []),
        ("hermes", "<tool_call></tool_call>x", "x", []),
        ("hermes", f'<tool_call>{{"a": "</tool_call>", {GOOD}', '{"a": "", ', [("f", "{}")]),
        ("qwen3_coder", "<function=a b>x</function>", "a b>x", []),
        ("qwen3_coder", "<function=f>junk", "fjunk", []),
        ("glm45", "<tool_call>a b<arg_key>", "a b", []),
        ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        ("llama3_json", '{"name": "Bob"}', '{"name": "Bob"}', []),
        ("llama3_json", "<|python_tag|>print(1)", "print(1)", []),
        ("pythonic", "[1] says [f(x=1)]", "[1] says [f(x=1)]", []),
        ("pythonic", "[f(3)]", "[f(3)]", []),
        ("mistral", "[TOOL_CALLS]no such {", "no such {", []),
        # What the end of a reply cuts off after a marker is no content.
        ("hermes", '<tool_call>{"name": "f", "arg', "", []),
        ("hermes", 'So: <tool_call>{"na', "So:", []),
        ("mistral", "[TOOL_CALLS]no such", "", []),
        ("qwen3_coder", "<tool_call>\n<function=f", "", []),
        ("llama3_json", '{"name": "Bo', '{"name": "Bo', []),
        ("openai", "plain words", "plain words", []),
        # From then on it is accepted, with its arguments as far as they came.
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1', "", [("f", '{"a": [1')]),
        ("hermes", GOOD[:-14] + "}</tool_call>", "", [("f", "{}")]),
        ("hermes", GOOD[:-12] + " and so on", " and so on", [("f", "{}")]),
        ("qwen3_coder", "<function=f><parameter=a>1</parameter><para", "", [("f", '{"a": 1')]),
        ("qwen3_coder", "<function=f><parameter=a>1", "", [("f", "")]),
        ("pythonic", "[f(a=1, b=g(2))] x", ")] x", [("f", '{"a": 1')]),
        ("deepseek_v31", "</think><｜tool▁call▁begin｜>f<｜tool▁sep｜>{} x", " x", [("f", "{}")]),
        ("hermes", GOOD + "\n", "", [("f", "{}")]),
        ("hermes", GOOD + "\n\nx\n", "\n\nx\n", [("f", "{}")]),
        (
            "openai",
            "<|channel|>commentary to=functions.f<|message|>no JSON<|end|>",
            "no JSON",
            [],
        ),
        # Other spellings that models use.
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}', "", [("f", '{"a": 1}')]),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}',
            "",
            [("f", '{"a": 1}')],
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (
            "hermes",
            '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {}}}',
            "",
            [("f", "{}")],
        ),
        (
            "hermes",
            '<tool_call>[{"arguments": {"a": 1}, "name": "f"}, '
            '{"arguments": {"b": 2}, "name": "g"}]',
            "",
            [("f", '{"a": 1}'), ("g", '{"b": 2}')],
        ),
        (
            "hermes",
            '<tool_call>{"arguments": {"a": 1}, "name": "f"}\n{"name": "g", "arguments": {}}',
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        (
            "hermes",
            '<tool_call>{"id": "1", "arguments": {}, "type": "function", "name": "f"}; '
            '{"name": "g"}',
            "",
            [("f", "{}"), ("g", "{}")],
        ),
        (
            "phi4_word",
            'functools[{"parameters": {"a": 1}, "name": "f"},{"name": "g", "parameters": {}}]',
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        (
            "llama3_json",
            'I look. {"name": "f", "parameters": {"a": 1}}',
            "I look.",
            [("f", '{"a": 1}')],
        ),
        (
            "llama3_json",
            'So {"type": "function", "name": "f", "parameters": {}} it is',
            "So it is",
            [("f", "{}")],
        ),
        ("llama3_json", 'I look. {"name":"f","parameters":{"a":1}}', "I look.", [("f", '{"a":1}')]),
        ("llama3_json", 'So {"type":"function","name":"f","parameters":{}}', "So", [("f", "{}")]),
        ("llama3_json", 'He is  {"name": "Bob"} now', 'He is  {"name": "Bob"} now', []),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\nx y\n<parameter=b>\n2\n</function>\n"
            "</tool_call>",
            "",
            [("f", '{"a": "x y", "b": 2}')],
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n<b>1</b>\n</tool_call> done",
            " done",
            [("f", '{"a": "<b>1</b>"}')],
        ),
        ("openai", " to=functions.f<|channel|>commentary json<|message|>{}", "", [("f", "{}")]),
        ("openai", "<|channel|>commentary to=functions.f<|message|><|call|>", "", [("f", "{}")]),
    ],
)
def test_content_and_calls(
    style: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    events, spans = parse(STYLES[style], [text])
    assert text_of(events, "content") == content
    assert calls_of(events) == calls
    assert spans[-1][0] == len(text)
    assert parse(STYLES[style], text) == (events, spans)


DEEPSEEK = (
    "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁sep｜>f\n"
    "```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)


@pytest.mark.parametrize(
    ("style", "text", "limit"),
    [
        ("hermes", '<tool_call>{{"{}": 1, "name": "f", "arguments": {{}}}}</tool_call>', MAX_KEY),
        ("deepseek_v3", DEEPSEEK, MAX_FIELD),
        ("pythonic", "[f({}='a')]", MAX_KEY - 1),
        ("pythonic", "[f({}=[1])]", MAX_KEY - 1),
    ],
)
def test_what_is_too_long_is_too_long_in_any_chunks(style: str, text: str, limit: int) -> None:
    for length in (limit, limit + 1):
        written = text.format("x" * length)
        whole = parse(STYLES[style], [written])
        assert parse(STYLES[style], written) == whole
        assert len(calls_of(whole[0])) == (length == limit)


def machine(style: str = "hermes") -> Machine:
    graph = make_graph(STYLES[style].reasoning, STYLES[style].tools, {})
    return Machine(graph, {}, graph.first_state("", ""))


def test_no_more_is_held_back_than_may_be_a_marker() -> None:
    found = machine()
    given = ""
    for text, held in [("a ", " "), ("b<t", "<t"), ("xx", ""), ("\n\n<tool_cal", "\n\n<tool_cal")]:
        found.feed(text)
        given += text
        assert "".join(event.text for event in found.output.events) == given.removesuffix(held)


def test_arguments_are_given_out_as_they_are_written() -> None:
    found = machine()
    found.feed('<tool_call>{"name": "f", "arguments": {"a": "x')
    assert found.output.events == [Event("call", "f"), Event("arguments", '{"a": "x')]
    found.output.events.clear()
    found.feed("\\")  # what it comes before is not known yet
    assert found.output.events == []
    found.feed('" y')
    assert found.output.events == [Event("arguments", '\\" y')]


def test_what_waits_for_a_sign() -> None:
    """The head of a call and the beginning of a marker are held back until more can be reported."""
    found = machine()
    found.feed("So:<tool_")
    found.output.events.clear()
    assert found.waits
    assert found.flow("ca") == "value"
    assert found.flow("lls") is None  # no marker
    found.feed("ll>\n{")
    assert [found.flow(text) for text in ('"na', 'me": "f", ', '"arguments":')] == ["value"] * 3
    assert found.output.events == []
    assert found.flow("{") is None
    found.feed("{")
    assert found.output.events == [Event("call", "f"), Event("arguments", "{")]
    assert not found.waits


def test_no_more_waits_than_so_much() -> None:
    found = machine()
    found.feed("<tool_call>{")
    words = 0
    while found.flow("words, ") is not None:
        words += len("words, ")
    assert MAX_WAITING - len("words, ") < words <= MAX_WAITING
    found.feed("words")
    assert text_of(found.output.events, "content") == "{" + "words, " * (words // 7) + "words"


def test_text_that_flows() -> None:
    """It is given out as it is: text without a marker, and arguments that go on after it."""
    found = machine()
    assert found.flow("a") is None  # what a reply begins with decides
    found.feed("a")
    assert found.flow("b c") == "content"
    assert found.flow("b ") is None
    assert found.flow("b <c") is None
    found.feed('<tool_call>{"name": "f", "arguments": {"a": "x')
    assert found.flow("</tool_call> {") == "arguments"
    assert found.flow('", "b": [{"c": 1') == "arguments"
    assert found.flow("}]}") is None
    found.output.events.clear()
    found.feed("}]}}")
    assert found.output.events == [Event("arguments", "}]}")]


def test_first_states() -> None:
    graph = make_graph(STYLES["hermes"].reasoning, STYLES["hermes"].tools, {})
    assert graph.first_state("assistant\n", "") == "start"
    assert graph.first_state("assistant\n<think>\n", "") == "reasoning"
    assert graph.first_state("<think>\n\n</think>\n\n", "") == "answer"
    assert graph.first_state("", "<think>so far") == "reasoning"
    assert graph.first_state("", "<think>so</think> far") == "content"
    reported = make_graph(REASONING_PARSERS["deepseek_v3"], None, {})
    assert reported.first_state("<|tool_output_end|>", "") == "start"
    opened = make_graph(STYLES["deepseek_v3"].reasoning, None, {})
    assert opened.first_state("<|Assistant|>", "") == "reasoning"
    assert opened.first_state("</think>", "") == "answer"


PYTHON_TEXTS = (
    "[f(a='''x \"\" 'y' ''', b=1)]",
    '[f(a="""it\'s ""so"" """, b=[\'\'])]',
    '[f(a="""so "it, he) said" then""", b=1)]',
    '[f(a=\'\', b=""), g(c=\'it\\\'s\', d="""\\\\""")]',
    "[f(a={'k': (1, 2.5, None, True)}, b=-1e-3)]",
    "[f(a=\"a, b) c\", b='[')  , g( )]",
)


@pytest.mark.parametrize("text", PYTHON_TEXTS)
def test_python_cut_anywhere(text: str) -> None:
    """Between the quotes of three, after backslashes: the rarer spellings, at every place."""
    whole = parse(STYLES["pythonic"], [text])
    calls = ast.parse(text, mode="eval").body
    assert isinstance(calls, ast.List)
    wanted = []
    for call in calls.elts:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        own = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        wanted.append((call.func.id, json.loads(json.dumps(own))))
    assert [(name, json.loads(own)) for name, own in calls_of(whole[0])] == wanted
    for first in range(1, len(text)):
        assert parse(STYLES["pythonic"], [text[:first], text[first:]]) == whole
        for second in range(first + 1, min(first + 4, len(text))):
            chunks = [text[:first], text[first:second], text[second:]]
            assert parse(STYLES["pythonic"], chunks) == whole


class TestCallsInThoughts:
    """A model that calls a tool while it thinks may never close its thoughts."""

    @pytest.mark.parametrize("size", [1, 5, 1000])
    @pytest.mark.parametrize(
        ("text", "reasoning", "content", "calls"),
        [
            (f"<think>They want it.\n{GOOD}", "They want it.\n", "", [("f", "{}")]),
            (f"<think>Hm {GOOD} Done.", "Hm ", " Done.", [("f", "{}")]),
            (f"<think>Hm{GOOD}</think>\n\nDone.", "Hm", "Done.", [("f", "{}")]),
            # What is no call is what was thought.
            ("<think>I write <tool_call>{so} then.</think>Yes", "I write {so} then.", "Yes", []),
            ("<think>Empty: <tool_call></tool_call>x</think>Yes", "Empty: x", "Yes", []),
            ('<think>Hm <tool_call>{"name": "f', "Hm ", "", []),
        ],
    )
    def test_it(
        self, text: str, reasoning: str, content: str, calls: list[tuple[str, str]], size: int
    ) -> None:
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        events, spans = parse(STYLES["hermes"], chunks)
        assert text_of(events, "reasoning") == reasoning
        assert text_of(events, "content") == content
        assert calls_of(events) == calls
        assert spans[-1][0] == len(text)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("marker", ["<|tool_call|>", "<tool_call>"])
def test_granite_spells_its_marker_in_two_ways(marker: str, size: int) -> None:
    text = f'Here. {marker} [{{"name": "f", "arguments": {{}}}}]'
    events, _ = parse(STYLES["granite"], [text[at : at + size] for at in range(0, len(text), size)])
    assert text_of(events, "content") == "Here."
    assert calls_of(events) == [("f", "{}")]


def test_a_reply_held_to_calls_has_no_content_cut_off() -> None:
    """Where a grammar holds it, what begins with a bracket can be nothing else than a call."""
    graph = make_graph(None, STYLES["llama3_json"].tools, {})
    for is_held, shown in ((True, ""), (False, '{"name": "f')):
        machine = Machine(graph, {}, START, is_held_to_calls=is_held)
        machine.feed('{"name": "f')
        machine.finish()
        assert text_of(machine.output.events, "content") == shown
