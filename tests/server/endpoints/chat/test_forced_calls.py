"""Required, named and strict calls: what is drawn under their grammar is calls that validate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.messages.request import Request
from server.conversation.parsing.format import CallSyntax
from server.conversation.parsing.formats.known import TOOL_PARSERS
from server.conversation.parsing.syntax import call_text
from tests.fake_grammar import follows_grammar
from tests.fakes import EOS, FakeEngine, byte_backend
from tests.server.conftest import in_process
from tests.server.conversation.parsing.written import write
from tests.server.endpoints.chat.chats import chat, stream
from tests.server.endpoints.chat.tool_replies import TEMPLATE, joined

LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["a", "b c"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["kind", "count"],
    "additionalProperties": False,
}
STOP: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"look": LOOK, "stop": STOP}
FORMATS = (
    *("hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "glm45"),
    *("phi4_mini_json", "pythonic", "openai"),
)
SEEDS = range(4)
TOKENS = LLTokenizer(byte_backend().to_str(), 259, [EOS])


def tools(**strict: bool) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": schema, "strict": strict.get(name, False)},
        }
        for name, schema in SCHEMAS.items()
    ]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


async def replies(
    tool_format: str, seeds: Iterable[int] = SEEDS, **fields: Any
) -> list[dict[str, Any]]:
    """The choices of a reply a seed, each drawn at random under the request's grammar.

    One server gives them all: each starts a process that checks grammars.
    """
    config: dict[str, Any] = {"tool_call_parser": tool_format, "reasoning_parser": "none"}
    if tool_format == "openai":  # its calls come after thoughts, which must come to an end
        config["reasoning_parser"] = "openai"
        fields["thinking_token_budget"] = 9
    fields = {"tools": tools(), "max_tokens": 3000, **fields}
    engine, found = FakeEngine(max_model_len=4096), []
    async with in_process(engine, chat_template=TEMPLATE, **config) as site:
        for seed in seeds:
            engine.script = follows_grammar(seed)
            found += (await chat(site, **fields))["choices"]
    return found


def check_calls(choice: dict[str, Any]) -> list[str]:
    """The names of a choice's calls, each of whose arguments validates."""
    calls = choice["message"]["tool_calls"]
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[call["function"]["name"]])
    return [call["function"]["name"] for call in calls]


@pytest.mark.parametrize("tool_format", FORMATS)
async def test_required_calls_are_all_of_the_reply(tool_format: str) -> None:
    for choice in await replies(tool_format, tool_choice="required", parallel_tool_calls=False):
        assert choice["finish_reason"] == "tool_calls"
        assert not (choice["message"]["content"] or "").strip()
        assert len(check_calls(choice)) == 1


@pytest.mark.parametrize("tool_format", FORMATS)
async def test_a_named_call_is_of_that_tool(tool_format: str) -> None:
    forced = named("look")
    for choice in await replies(tool_format, tool_choice=forced, parallel_tool_calls=False):
        assert check_calls(choice) == ["look"]


async def test_several_calls_may_be_made() -> None:
    choices = await replies("phi4_mini_json", range(12), tool_choice="required")
    counts = [len(check_calls(choice)) for choice in choices]
    assert len(counts) == 12
    assert min(counts) >= 1
    # Behind each call another begins about as often as the list ends: 12 lists of one call each
    # would come once in some 4,000 runs, and these seeds are fixed.
    assert max(counts) > 1


def before_calls(syntax: CallSyntax) -> str:
    """What a reply that is free may hold before its first call."""
    messages = syntax.messages
    if messages is not None:
        begins = (messages.thoughts, messages.remark, messages.thoughts)
        return "".join(f"{begin}I look.{messages.end}{messages.separator}" for begin in begins)
    return syntax.opening if syntax.leads else f"I look.\n{syntax.opening}"


def follows(request: Request, text: str) -> bool:
    """Whether a request's grammar allows a text."""
    assert request.grammar is not None
    matcher = LLMatcher(TOKENS, request.grammar.source, log_level=0)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and not matcher.is_error()


async def grammar_of(tool_format: str, **fields: Any) -> Request:
    """A request as the engine gets it."""
    config: dict[str, Any] = {"tool_call_parser": tool_format, "reasoning_parser": "none"}
    async with in_process(FakeEngine(follows_grammar()), chat_template=TEMPLATE, **config) as site:
        await chat(site, max_tokens=5, **fields)
        [request] = site.engine.requests
    return request


@pytest.mark.parametrize("tool_format", FORMATS)
async def test_strict_calls_validate_wherever_they_begin(tool_format: str) -> None:
    request = await grammar_of(tool_format, tools=tools(look=True))
    written = TOOL_PARSERS[tool_format]

    def is_allowed(name: str, **arguments: Any) -> bool:
        call = write(call_text(written, name, SCHEMAS[name]), arguments)
        return follows(request, before_calls(written.syntax) + call + written.syntax.closing)

    assert is_allowed("look", kind="b c", count=7)
    assert not is_allowed("look", kind="b c", count=700)
    assert not is_allowed("look", kind="d", count=7)
    assert not is_allowed("look", count=7)
    assert is_allowed("stop")


async def test_calls_of_tools_that_are_not_strict_are_free() -> None:
    async with in_process(chat_template=TEMPLATE) as site:
        await chat(site, tools=tools(), max_tokens=5)
        [request] = site.engine.requests
        assert request.grammar is None


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_stream_of_a_required_call_behind_thoughts(seed: int) -> None:
    engine = FakeEngine(follows_grammar(seed), max_model_len=4096)
    async with in_process(engine, chat_template=TEMPLATE) as site:
        fields: dict[str, Any] = {"tools": tools(), "tool_choice": "required", "max_tokens": 3000}
        message = joined(await stream(site, thinking_token_budget=5, **fields))
        assert message["tool_calls"]
        assert len(message.get("reasoning_content", "").encode(errors="replace")) <= 3 * 5
        for call in message["tool_calls"]:
            jsonschema.validate(
                json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]]
            )


NOT = {"type": "object", "properties": {"at": {"not": {"pattern": "x"}, "type": "string"}}}


def one_tool(name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


class TestWhatCannotBeKeptTo:
    """Of tools that are not strict it is dropped, and the reply says so."""

    @pytest.mark.parametrize("tool_format", FORMATS)
    async def test_beside_a_strict_tool(self, tool_format: str) -> None:
        config: dict[str, Any] = {"tool_call_parser": tool_format, "reasoning_parser": "none"}
        offered = [one_tool("look", NOT), one_tool("stop", STOP, strict=True)]
        async with in_process(
            FakeEngine(follows_grammar()), chat_template=TEMPLATE, **config
        ) as site:
            reply = await chat(site, tools=offered, max_tokens=5)
            chunks = await stream(site, tools=offered, max_tokens=5)
            [request, _] = site.engine.requests
        place = "tools[0].function.parameters.properties.at.not"
        assert reply["ignored_keywords"] == [place]
        assert [c["ignored_keywords"] for c in chunks if "ignored_keywords" in c] == [[place]]
        written = TOOL_PARSERS[tool_format]
        call = write(call_text(written, "look", NOT), {"at": "x"})
        assert follows(request, before_calls(written.syntax) + call + written.syntax.closing)

    async def test_a_schema_that_is_refused_whole(self) -> None:
        never = {"type": "object", "properties": {"at": False}, "required": ["at"]}
        request = await grammar_of(
            "qwen3_coder", tools=[one_tool("look", never), one_tool("stop", STOP, strict=True)]
        )
        written = TOOL_PARSERS["qwen3_coder"]
        assert follows(request, write(call_text(written, "look", never), {"at": "any words"}))

    async def test_by_option_of_forced_calls_too(self) -> None:
        async with in_process(FakeEngine(follows_grammar()), chat_template=TEMPLATE) as site:
            reply = await chat(
                site,
                tools=[one_tool("look", NOT)],
                tool_choice="required",
                structured_outputs={"lenient": True},
                max_tokens=5,
            )
        assert reply["ignored_keywords"] == ["tools[0].function.parameters.properties.at.not"]

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ({"properties": {"a": {"type": "string", "enum": []}}}, "it has no value"),
            ({"properties": {"a>b": {"type": "string"}}}, "its name cannot be written"),
            ({"properties": {}, "required": ["a"]}, "it names a, no property"),
            ({"properties": {"a": {"type": "string"}}, "minProperties": 1}, "cannot be enforced"),
        ],
    )
    async def test_arguments_written_one_by_one(self, schema: dict[str, Any], words: str) -> None:
        config: dict[str, Any] = {"tool_call_parser": "glm45", "reasoning_parser": "none"}
        async with in_process(chat_template=TEMPLATE, **config) as site:
            error = await chat(site, 400, tools=[one_tool("look", schema)], tool_choice="required")
            assert words in error["message"]


class TestPython:
    """Calls in Python's form: values are JSON or what Python alone writes."""

    @pytest.mark.parametrize(
        "arguments",
        ["kind='a', count=3", 'count=0, kind="b c"', 'kind="a", count=1, flags=[true, false]'],
    )
    async def test_arguments(self, arguments: str) -> None:
        schema = {**LOOK, "properties": {**LOOK["properties"], "on": {"type": "boolean"}}}
        request = await grammar_of(
            "pythonic", tools=[one_tool("look", schema)], tool_choice="required"
        )
        in_order = arguments.startswith("kind")
        assert follows(request, f"[look({arguments})]") == in_order
        assert follows(request, f"[look({arguments}, on=True)]") == in_order
        assert not follows(request, f"[look({arguments}, on=3)]")

    @pytest.mark.parametrize(
        ("arguments", "is_allowed"),
        [("", True), ("a=1", True), ("b=2", True), ("a=1, b=2", True), ("b=2, a=1", False)],
    )
    async def test_commas(self, arguments: str, is_allowed: bool) -> None:
        whole = {"properties": {key: {"type": "integer"} for key in "ab"}}
        request = await grammar_of(
            "pythonic", tools=[one_tool("look", whole)], tool_choice="required"
        )
        assert follows(request, f"[look({arguments})]") == is_allowed

    @pytest.mark.parametrize("word", ["$defs", "definitions"])
    async def test_an_argument_may_refer_to_a_schema_beside_it(self, word: str) -> None:
        whole = {
            "properties": {"a": {"$ref": f"#/{word}/small"}},
            word: {"small": {"type": "integer", "minimum": 0, "maximum": 9}},
        }
        request = await grammar_of(
            "pythonic", tools=[one_tool("look", whole)], tool_choice="required"
        )
        assert follows(request, "[look(a=7)]")
        assert not follows(request, "[look(a=70)]")

    async def test_text_or_calls(self) -> None:
        request = await grammar_of("pythonic", tools=tools(look=True))
        assert follows(request, "I say [so].")
        assert follows(request, " [stop()]") is False
        assert not follows(request, "[so it is]")

    async def test_a_name_that_python_does_not_have(self) -> None:
        config: dict[str, Any] = {"tool_call_parser": "pythonic"}
        async with in_process(chat_template=TEMPLATE, **config) as site:
            error = await chat(site, 400, tools=[one_tool("1st", STOP)])
            assert error["param"] == "tools[0].function.name"


class TestMessages:
    """Calls of gpt-oss: a reply is messages, of which a call is the last."""

    async def test_an_answer_or_a_call(self) -> None:
        request = await grammar_of("openai", tools=tools(look=True))
        channel = "<|channel|>{}<|message|>{}"
        assert follows(request, channel.format("final", "So it is."))
        call = channel.format(
            "commentary to=functions.look <|constrain|>json", '{"kind":"a","count":1}'
        )
        assert follows(request, call)
        thoughts = channel.format("analysis", "hm<|end|><|start|>assistant")
        assert follows(request, thoughts + thoughts + call)
        assert not follows(request, call + "<|start|>")
        assert not follows(request, "So it is.")


FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "integer", "maximum": 99, "minimum": 10}},
}


class TestBesideAResponseFormat:
    """An answer keeps to the format, and the model may call tools instead of answering."""

    @pytest.mark.parametrize("tool_format", FORMATS)
    @pytest.mark.parametrize("strict", [False, True])
    async def test_a_reply_is_calls_or_an_answer(self, tool_format: str, strict: bool) -> None:
        request = await grammar_of(tool_format, tools=tools(look=strict), response_format=FORMAT)
        written = TOOL_PARSERS[tool_format]
        syntax = written.syntax
        call = write(call_text(written, "look", LOOK), {"kind": "a", "count": 1})
        stop = write(call_text(written, "stop", STOP), {})
        assert follows(request, syntax.opening + call + syntax.closing)
        if not syntax.is_last:
            assert follows(request, syntax.opening + call + syntax.separator + stop)
        begin = "" if syntax.messages is None else syntax.messages.answer
        assert follows(request, f"{begin}57")
        assert not follows(request, f"{begin}570")
        assert not follows(request, f"{begin}I say 57")
        assert not follows(request, f"{begin}57{syntax.opening}{call}")

    @pytest.mark.parametrize("tool_format", ["hermes", "llama3_json", "openai"])
    async def test_both_come_and_each_keeps_to_its_own(self, tool_format: str) -> None:
        """The rarer kind comes one time in nine or more, so all 48 are of one kind with 0.4 %."""
        schema = {
            "type": "object",
            "properties": {"zz": {"const": 1}},
            "required": ["zz"],
            "additionalProperties": False,
        }
        asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        choices = await replies(tool_format, [0], response_format=asked, n=48)
        for choice in choices:
            if choice["finish_reason"] == "tool_calls":
                assert check_calls(choice)
            else:
                assert choice["finish_reason"] == "stop"
                assert json.loads(choice["message"]["content"]) == {"zz": 1}
        assert {choice["finish_reason"] for choice in choices} == {"tool_calls", "stop"}

    async def test_without_parallel_calls_there_is_one(self) -> None:
        request = await grammar_of(
            "hermes", tools=tools(), response_format=FORMAT, parallel_tool_calls=False
        )
        call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
        assert follows(request, call)
        assert not follows(request, f"{call}\n")

    async def test_a_forced_call_leaves_no_answer_to_hold(self) -> None:
        request = await grammar_of(
            "hermes", tools=tools(), tool_choice="required", response_format=FORMAT
        )
        assert not follows(request, "57")

    @pytest.mark.parametrize("fields", [{"tool_choice": "none", "tools": tools()}, {}])
    async def test_where_nothing_may_be_called_the_format_holds_alone(
        self, fields: dict[str, Any]
    ) -> None:
        request = await grammar_of("hermes", response_format=FORMAT, **fields)
        assert follows(request, "57")
        assert not follows(request, "<tool_call>")

    async def test_calls_that_are_left_in_the_content_keep_to_its_format(self) -> None:
        request = await grammar_of("none", tools=tools(), response_format=FORMAT)
        assert not follows(request, "<tool_call>")

    async def test_what_cannot_be_kept_to_of_either_is_told(self) -> None:
        schema = {"type": "object", "properties": {"a": {"not": {"pattern": "x"}}}}
        asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        offered = [one_tool("look", NOT)]
        place = "response_format.json_schema.schema.properties.a.not"
        async with in_process(FakeEngine(follows_grammar()), chat_template=TEMPLATE) as site:
            error = await chat(site, 400, tools=offered, response_format=asked)
            assert error["param"] == place
            reply = await chat(
                site,
                tools=offered,
                response_format=asked,
                structured_outputs={"lenient": True},
                max_tokens=5,
            )
        assert reply["ignored_keywords"] == [
            "tools[0].function.parameters.properties.at.not",
            place,
        ]


def tool_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"at": schema}}
    return [{"type": "function", "function": {"name": "look", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("tool_format", "fields", "param", "words"),
    [
        (
            "hermes",
            {"tools": tool_of({"not": {"pattern": "x"}})},
            "tools[0].function.parameters.properties.at.not",
            "cannot be enforced",
        ),
        (
            "glm45",
            {"tools": tool_of({"type": "string", "maxLength": 3})},
            "tools[0].function.parameters.properties.at",
            "maxLength cannot be enforced of a string",
        ),
        (
            "glm45",
            {"tools": tool_of({"type": ["string", "null"]})},
            "tools[0].function.parameters.properties.at",
            "its type must be one alone",
        ),
        ("none", {"tools": tools()}, "tool_choice", "cannot be kept to a grammar"),
        (
            "hermes",
            {"tools": tools(), "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "only one grammar may be given, got tool_choice and structured_outputs.regex",
        ),
        ("hermes", {"tools": tools(), "ignore_eos": True}, "ignore_eos", "must be false"),
    ],
)
async def test_what_cannot_be_kept_to(
    tool_format: str, fields: dict[str, Any], param: str, words: str
) -> None:
    config: dict[str, Any] = {"tool_call_parser": tool_format, "reasoning_parser": "none"}
    async with in_process(chat_template=TEMPLATE, **config) as site:
        error = await chat(site, 400, tool_choice="required", **fields)
        assert error["param"] == param
        assert words in error["message"]
        assert not site.engine.requests
