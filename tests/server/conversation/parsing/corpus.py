"""Replies of every format, drawn by a seeded generator, with what they say where that is known."""

# ruff: noqa: RUF001

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from server.conversation.parsing.format import Field, ReasoningFormat, ToolFormat
from server.conversation.parsing.formats.known import REASONING_PARSERS, TOOL_PARSERS
from server.conversation.parsing.graph import Node, make_graph
from server.conversation.parsing.learning.learn import formats_of
from tests.server.conversation.parsing.learning.templates import FAMILIES, render

Arguments = dict[str, Any]
Call = tuple[str, Arguments]


@dataclass
class Reply:
    """One reply as a model could write it.

    Attributes:
        content, reasoning, calls: what it says; None of a reply that is broken or cut.
    """

    text: str
    content: str | None = None
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Style:
    """How one format is written.

    Attributes:
        write: the text of some calls.
        wrap: a reply of reasoning, content before, calls and content after.
        follows: whether content may come after the calls, and before them.
        spells: a value that spells JSON is that JSON, where no schema says otherwise.
    """

    tools: ToolFormat
    reasoning: ReasoningFormat | None
    write: Callable[[list[Call]], str]
    follows: bool = True
    precedes: bool = True
    markers: tuple[str, ...] = ()
    spells: bool = False


NAMES = ("look", "get_weather", "a.b", "x-1")
KEYS = ("at", "n", "größe", "list", "deep")
WORDS = (
    *(
        "Paris",
        "grüße",
        "🙂👍🏽",
        'say "hi"',
        "it's",
        "a\\b",
        "line\nbreak",
        "tab\t",
        "",
        " ",
        "{",
        "}]",
    ),
    *("</", "<tool", "[", "(", ")", ",", ";", "=", "null", "123", "中文", "a" * 40, "\u200b"),
)
TEXTS = (
    "I look.",
    "Grüße 🙂",
    "It is {1, 2}",
    "a < b > c",
    "```py\nx\n```",
    "Well; yes",
    "<b>hi</b>",
)


def _value(draw: random.Random, words: tuple[str, ...], depth: int = 2) -> Any:
    kind = draw.randrange(8 if depth else 6)
    if kind < 3:
        return "".join(draw.choice(words) for _ in range(draw.randint(1, 3)))
    if kind == 3:
        return draw.choice([0, -7, 12345678901234567890, 1.5, 1e-9])
    if kind == 4:
        return draw.choice([True, False, None])
    if kind == 5:
        return draw.choice([[], {}])
    if kind == 6:
        return [_value(draw, words, depth - 1) for _ in range(draw.randint(1, 3))]
    return {draw.choice(KEYS): _value(draw, words, depth - 1) for _ in range(2)}


def _calls(draw: random.Random, words: tuple[str, ...]) -> list[Call]:
    return [
        (
            draw.choice(NAMES),
            {key: _value(draw, words) for key in draw.sample(KEYS, draw.randint(0, 3))},
        )
        for _ in range(draw.choice([1, 1, 1, 2, 3]))
    ]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _objects(calls: list[Call], key: str = "arguments") -> list[str]:
    return [f'{{"name": {_dump(name)}, "{key}": {_dump(args)}}}' for name, args in calls]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _dump(value)


def _hermes(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in _objects(calls))


def _qwen3_coder(calls: list[Call]) -> str:
    texts = []
    for name, args in calls:
        fields = "".join(
            f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in args.items()
        )
        texts.append(f"<tool_call>\n<function={name}>\n{fields}</function>\n</tool_call>")
    return "\n".join(texts)


def _glm(calls: list[Call]) -> str:
    texts = []
    for name, args in calls:
        fields = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n"
            for key, value in args.items()
        )
        texts.append(f"<tool_call>{name}\n{fields}</tool_call>")
    return "\n".join(texts)


def _pythonic(calls: list[Call]) -> str:
    texts = []
    for name, args in calls:
        pairs = (f"{key}={value!r}" for key, value in args.items())
        texts.append(f"{name}({', '.join(pairs)})")
    return f"[{', '.join(texts)}]"


def _deepseek_v3(calls: list[Call]) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_dump(args)}\n```"
        "<｜tool▁call▁end｜>"
        for name, args in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _kimi_k2(calls: list[Call]) -> str:
    texts = [
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{_dump(own)}"
        for i, (name, own) in enumerate(calls)
    ]
    inner = "".join(f"{text}<|tool_call_end|>" for text in texts)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def _deepseek_v31(calls: list[Call]) -> str:
    inner = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_dump(args)}<｜tool▁call▁end｜>"
        for name, args in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _harmony(calls: list[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_dump(args)}"
        "<|call|>"
        for name, args in calls
    )


def _style(
    tools: str, reasoning: str | None, write: Callable[[list[Call]], str], **rest: Any
) -> Style:
    thoughts = None if reasoning is None else REASONING_PARSERS[reasoning]
    return Style(TOOL_PARSERS[tools], thoughts, write, **rest)


STYLES: dict[str, Style] = {
    "hermes": _style("hermes", "qwen3", _hermes),
    "qwen3_coder": _style("qwen3_coder", "qwen3", _qwen3_coder, spells=True),
    "glm45": _style("glm45", "glm45", _glm, spells=True),
    "llama3_json": _style(
        "llama3_json", None, lambda calls: "; ".join(_objects(calls, "parameters"))
    ),
    "llama3_tag": _style(
        "llama3_json", None, lambda calls: "<|python_tag|>" + "; ".join(_objects(calls))
    ),
    "pythonic": _style("pythonic", None, _pythonic, precedes=False),
    "llama4_pythonic": _style(
        "pythonic", None, lambda calls: f"<|python_start|>{_pythonic(calls)}<|python_end|>"
    ),
    "mistral": _style(
        "mistral", "mistral", lambda calls: f"[TOOL_CALLS] [{', '.join(_objects(calls))}]"
    ),
    "mistral_args": _style(
        "mistral",
        "mistral",
        lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{_dump(a)}" for n, a in calls),
    ),
    "deepseek_v3": _style("deepseek_v3", "deepseek_r1", _deepseek_v3),
    "deepseek_v31": _style("deepseek_v31", "deepseek_r1", _deepseek_v31),
    "phi4": _style(
        "phi4_mini_json",
        None,
        lambda calls: f"<|tool_call|>[{', '.join(_objects(calls))}]<|/tool_call|>",
    ),
    "phi4_word": _style(
        "phi4_mini_json",
        None,
        lambda calls: f"functools[{', '.join(_objects(calls))}]",
    ),
    "openai": _style("openai", "openai_gptoss", _harmony),
    "lfm2": _style(
        "lfm2", None, lambda calls: f"<|tool_call_start|>{_pythonic(calls)}<|tool_call_end|>"
    ),
    "granite": _style(
        "granite", None, lambda calls: f"<|tool_call|>[{', '.join(_objects(calls))}]"
    ),
    "kimi_k2": _style("kimi_k2", "qwen3", _kimi_k2),
    "nemotron": _style(
        "nemotron_json",
        "qwen3",
        lambda calls: f"<TOOLCALL>[{', '.join(_objects(calls))}]</TOOLCALL>",
    ),
}


def _learned(name: str) -> Style:
    family = FAMILIES[name]
    tools, thoughts, _ = formats_of("", partial(render, family.source))
    assert tools is not None
    leads = tools.syntax.leads
    return Style(tools, thoughts, family.write, precedes=not leads, spells=family.spells)


STYLES |= {
    f"learned {name}": _learned(name) for name, family in FAMILIES.items() if not family.is_lossy
}


def markers_of(style: Style) -> list[str]:
    """The texts that may never be content; single characters and words in headers aside."""
    nodes: list[Node] = [*make_graph(style.reasoning, style.tools, {}).nodes.values()]
    found = {way.marker for node in nodes for way in node.exits}
    return sorted(m for m in found if m[0] in "<[" and len(m) > 3)


def _safe_words(style: Style) -> tuple[str, ...]:
    """Words of arguments: markers too, but in fields the one that ends a value."""
    ends = {
        way.marker.strip()
        for state in style.tools.states.values()
        if isinstance(state, Field) and state.role == "value"
        for way in state.exits
    }
    return (*WORDS, *(mark for mark in markers_of(style) if mark not in ends))


def wrap(style: Style, reply: Reply, before: str, after: str, body: str) -> str:
    """A reply of its reasoning, content before calls, their text, and content after."""
    thoughts = reply.reasoning
    if style.tools.names == ("openai",):
        messages = []
        if thoughts:
            messages.append(f"<|channel|>analysis<|message|>{thoughts}<|end|>")
        if before:
            messages.append(f"<|channel|>commentary<|message|>{before}<|end|>")
        if body:
            messages.append(body)
        if after:
            messages.append(f"<|channel|>final<|message|>{after}<|return|>")
        return "<|start|>assistant".join(messages)
    text = f"{before}{body}{after}"
    if style.reasoning is not None and thoughts:
        text = f"{style.reasoning.begin}\n{thoughts}\n{style.reasoning.end}\n\n{text}"
    elif style.reasoning is not None and style.reasoning.begins_open:
        text = f"{style.reasoning.end}{text}"
    return text


def _well_formed(draw: random.Random, style: Style) -> Reply:
    calls = _calls(draw, _safe_words(style)) if draw.random() < 0.85 else []
    before = draw.choice(TEXTS) if (not calls or style.precedes) and draw.random() < 0.6 else ""
    after = draw.choice(["", "", "\n\nDone."]) if calls and style.follows else ""
    can_think = style.reasoning is not None
    thoughts = draw.choice(["They want it.", "hm 🙂\n\n{x}", ""]) if can_think else ""
    reply = Reply("", content=before + after, reasoning=thoughts, calls=calls)
    gap = "\n" if before and calls and style.tools.names != ("openai",) else ""
    reply.text = wrap(style, reply, before + gap, after, style.write(calls) if calls else "")
    return reply


def _broken(draw: random.Random, style: Style) -> Reply:
    """A reply that was cut, or in which something was taken out, put in or doubled."""
    text = _well_formed(draw, style).text
    if not text:
        return Reply("<")
    kind, at = draw.randrange(4), draw.randrange(len(text))
    end = min(len(text), at + draw.randint(1, 6))
    if kind == 0:
        return Reply(text[:at])
    if kind == 1:
        return Reply(text[:at] + text[end:])
    if kind == 2:
        junk = draw.choice([*markers_of(style), *"{}[]()\"',:;<>\\ \n", "x", "🙂"])
        return Reply(text[:at] + junk + text[at:])
    return Reply(text[:end] + text[at:])


@cache
def corpus(name: str) -> list[Reply]:
    """Replies of one format: two of three are well formed, the others broken or cut."""
    count = 90 if name.startswith("learned") else 300
    draw = random.Random(name)
    style = STYLES[name]
    return [_broken(draw, style) if i % 3 == 2 else _well_formed(draw, style) for i in range(count)]
