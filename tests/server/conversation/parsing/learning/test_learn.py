"""Formats that templates teach."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest

from server.conversation.parsing.learning.learn import Formats, formats_of
from server.conversation.parsing.learning.probe import Message
from server.conversation.parsing.syntax import call_text
from tests.server.conversation.parsing.corpus import Style
from tests.server.conversation.parsing.learning.templates import FAMILIES, Family, render
from tests.server.conversation.parsing.parsed import calls_of, parse, text_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "n": {"type": "integer"}},
}


@cache
def learned(name: str) -> Formats:
    source = FAMILIES[name].source
    return formats_of(source, partial(render, source))


def style_of(name: str) -> Style:
    formats = learned(name)
    assert formats.tools is not None
    return Style(formats.tools, formats.reasoning, FAMILIES[name].write)


@pytest.mark.parametrize("name", FAMILIES)
class TestFamilies:
    def test_calls_and_thoughts_are_learned(self, name: str) -> None:
        tools, reasoning, takes_text = learned(name)
        family = FAMILIES[name]
        assert tools is not None
        assert not takes_text
        think = family.think
        assert (reasoning is None) == (think is None)
        if think is not None and reasoning is not None:
            assert (reasoning.begin, reasoning.end) == (think[0].strip(), think[1])

    def test_a_reply_says_what_was_written(self, name: str) -> None:
        family = FAMILIES[name]
        calls: list[tuple[str, dict[str, Any]]] = [
            ("look", {"at": "grüße {it}", "n": 3}),
            ("stop", {}),
            ("look", {"n": -4.5}),
        ]
        for count in (1, 2, 3):
            reply = family.write(calls[:count])
            for content in ("", "I look.") if name != "leading" else ("",):
                events, _ = parse(style_of(name), [content + reply])
                found = [(called, json.loads(own)) for called, own in calls_of(events)]
                assert found == calls[:count], reply
                assert text_of(events, "content") == content

    def test_a_grammar_writes_what_is_read(self, name: str) -> None:
        tools = learned(name).tools
        assert tools is not None
        syntax = tools.syntax
        given: list[dict[str, Any]] = [{"at": "it", "n": 3}, {"at": "there"}]
        texts = []
        for arguments in given:
            text = call_text(tools, "look", SCHEMA)
            inner = json.dumps(arguments)
            if text.arguments == "python":
                inner = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            elif text.arguments == "fields":
                own = [
                    f"{text.fields[key].begin}{value}{text.fields[key].end}"
                    for key, value in arguments.items()
                ]
                inner = syntax.field_separator.join(own)
            texts.append((text.begin + inner + text.end).replace("{id}", "7"))
        reply = syntax.opening + syntax.separator.join(texts) + syntax.closing
        assert syntax.trigger in reply
        events, _ = parse(style_of(name), [reply])
        assert [(n, json.loads(own)) for n, own in calls_of(events)] == [
            ("look", arguments) for arguments in given
        ], reply
        assert text_of(events, "content") == ""

    def test_an_untyped_grammar_is_what_the_template_writes(self, name: str) -> None:
        """Up to white space and ids: a model is held to what it was trained to write."""
        tools = learned(name).tools
        assert tools is not None
        if tools.syntax.arguments == "python":
            return  # a model writes texts in either of Python's quotes
        family, syntax = FAMILIES[name], tools.syntax
        text = call_text(tools, "look", SCHEMA)
        inner = '{"at": "it"}'
        if text.arguments == "fields":
            inner = f"{text.fields['at'].begin}it{text.fields['at'].end}"
        reply = syntax.opening + text.begin + inner + text.end + syntax.closing
        plain = family.write([("look", {"at": "it"})])
        for call_id in ("call00000", ', "id": "call00000"', '"tool_call_id": "0", '):
            plain = plain.replace(call_id, "") if call_id != "call00000" else plain
        plain = plain.replace("call00000", "{id}").replace(":0<", ":{id}<")
        reply = reply.replace('"tool_call_id": "{id}", ', "")
        assert "".join(reply.split()) == "".join(plain.split())


@pytest.mark.parametrize("name", ["numbered", "invoked", "typed", "suffixed"])
def test_a_call_whose_section_was_not_opened(name: str) -> None:
    """It ends the content before it as the section's opening would: white space between is none."""
    tools = learned(name).tools
    assert tools is not None
    reply = FAMILIES[name].write([("look", {"at": "it"})]).strip()
    opening = tools.syntax.opening.strip()
    assert opening
    assert reply.startswith(opening)
    for written in (reply, reply.removeprefix(opening).lstrip()):
        events, _ = parse(style_of(name), ["I look.\n\n" + written])
        assert [(called, json.loads(own)) for called, own in calls_of(events)] == [
            ("look", {"at": "it"})
        ], written
        assert text_of(events, "content") == "I look."


def test_values_that_say_their_type_keep_it() -> None:
    reply = FAMILIES["typed"].write([("look", {"at": "12", "n": 12})])
    (_, arguments), *_ = calls_of(parse(style_of("typed"), [reply])[0])
    assert json.loads(arguments) == {"at": "12", "n": 12}


@pytest.mark.parametrize("name", ["bare", "tagged"])
def test_values_within_values(name: str) -> None:
    given = {"where": {"lat": 1.5, "names": ["a b", "c,d"]}, "n": [1, 2]}
    reply = FAMILIES[name].write([("look", given)])
    (_, arguments), *_ = calls_of(parse(style_of(name), [reply])[0])
    assert json.loads(arguments) == given


class TestTemplatesOfOtherKinds:
    def test_a_known_format_stays_what_it_is(self) -> None:
        family = Family(
            "{%- for call in calls %}<tool_call>\n"
            '{"name": "{{ call.function.name }}", "arguments": '
            "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor -%}"
        )
        formats = formats_of(family.source, partial(render, family.source))
        assert formats.tools is not None
        assert formats.tools.names == ("hermes",)

    def test_a_format_that_only_seems_known_is_learned(self) -> None:
        """One holds the words of Hermes and writes calls otherwise: taken for it, they are lost."""
        family = Family(FAMILIES["tagged"].calls + "{# <tool_call> arguments #}", is_lossy=True)
        formats = formats_of(family.source, partial(render, family.source))
        assert formats.tools is not None
        assert formats.tools.names == ("learned",)

    def test_arguments_as_texts(self) -> None:
        source = Family(
            "{%- for call in calls %}<call>{{ call.function.name + ' ' + call.function.arguments }}"
            "</call>{% endfor -%}"
        ).source
        formats = formats_of(source, partial(render, source))
        assert formats.tools is not None
        assert formats.takes_text

    def test_a_name_that_only_the_id_says(self) -> None:
        source = Family(
            "{%- for call in calls %}<call>{{ call.id }}<args>"
            "{{ call.function.arguments | tojson }}</call>{% endfor -%}"
        ).source
        formats = formats_of(source, partial(render, source))
        assert formats.tools is not None
        style = Style(formats.tools, None, lambda calls: "")
        events, _ = parse(style, ['<call>functions.look:3<args>{"at": "it"}</call>'])
        assert calls_of(events) == [("look", '{"at": "it"}')]

    @pytest.mark.parametrize(
        "calls",
        [
            "(it calls something)",
            "{{ calls[0].function.name }}",
            "{% for call in calls %}{{ call.function.name }} {{ call.function.arguments.zka }}"
            "{% endfor %}",
            "{{ raise('no calls') }}",
        ],
    )
    def test_what_cannot_be_learned(self, calls: str) -> None:
        source = Family(calls).source
        assert formats_of(source, partial(render, source)).tools is None

    def test_one_call_alone(self) -> None:
        def single(messages: Sequence[Message], tools: Any, generates: bool) -> str:
            if any(len(message.get("tool_calls", ())) > 1 for message in messages):
                raise ValueError("one call at once")
            return render(FAMILIES["listed"].source, messages, tools, generates)

        formats = formats_of("", single)
        assert formats.tools is not None
        assert formats.tools.syntax.is_last

    def test_a_template_that_raises(self) -> None:
        def refuse(messages: Sequence[Message], tools: Any, generates: bool) -> str:
            raise RuntimeError

        assert formats_of("<tool_call> arguments", refuse).tools is not None  # by its words
        assert formats_of("", refuse) == (None, None, False)


def test_learning_takes_tens_of_renderings() -> None:
    """A server learns its own template before it is ready, and a request's before it answers."""
    count = 0

    def counted(messages: Sequence[Message], tools: Any, generates: bool) -> str:
        nonlocal count
        count += 1
        return render(FAMILIES["typed"].source, messages, tools, generates)

    begin = time.process_time()
    formats_of("", counted)
    assert count <= 60
    assert time.process_time() - begin < 5.0


@pytest.mark.parametrize("before", ["", "\n"])
@pytest.mark.parametrize("after", ["", "\n"])
def test_a_line_break_is_the_value_s_own_where_only_one_side_has_another(
    before: str, after: str
) -> None:
    """What is learned reads every value as it was written; what would not is not learned."""
    begin, end = ("{{ '\\n' }}" if text else "" for text in (before, after))
    value = "{{ value if value is string else value | tojson }}"
    fields = f"<p={{{{ key }}}}>{begin}{value}{end}</p>"
    family = Family(
        "{%- for call in calls -%}<call><fn={{ call.function.name }}>"
        "{%- for key, value in call.function.arguments.items() -%}" + fields + "{%- endfor -%}"
        "</fn></call>{%- endfor -%}"
    )
    tools, reasoning, _ = formats_of(family.source, partial(render, family.source))
    assert (tools is not None) == (before == after), "as far as it is certain"
    if tools is None:
        return
    for text in ("it", "it\n", "\nit", "\n\nit\n\n", " it "):
        reply = family.write([("look", {"at": text})])
        events, _ = parse(Style(tools, reasoning, family.write), [reply])
        assert [json.loads(own) for _, own in calls_of(events)] == [{"at": text}]
