"""Formats by the texts of chat templates."""

# ruff: noqa: RUF001

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from server.command.values import ReasoningParser, ToolCallParser
from server.conversation.parsing.formats.known import REASONING_PARSERS, TOOL_PARSERS
from server.conversation.parsing.recognise import knows_tools, reasoning_format_of, tool_format_of

TEMPLATES = {
    path.stem: path.read_text()
    for path in (Path(__file__).parent.parent / "templates").glob("*.jinja")
}
MARKS = {
    "openai": "'<|channel|>analysis<|message|>'",
    "qwen3_coder": "<tool_call>\n<function=example_function_name>\n<parameter=value>arguments",
    "glm45": "[gMASK] <tool_call>{function-name}\n<arg_key>..</arg_key>\n<arg_value> arguments",
    "deepseek_v3": "'<｜tool▁call▁begin｜>' + tool['type'] + '```json'",
    "deepseek_v31": "'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'",
    "mistral": "[TOOL_CALLS] [",
    "phi4_mini_json": "'<|tool|>' + message['tools'] + '<|/tool|>'",
    "pythonic": "[func_name1(params_name1=params_value1, params_name2=params_value2...)]",
    "lfm2": "'List of tools: <|tool_list_start|>['",
    "granite": "respond only with <|tool_call|> followed by a JSON list of tools used",
    "kimi_k2": "<|tool_calls_section_begin|> <|tool_call_argument_begin|>",
    "nemotron_json": "<AVAILABLE_TOOLS>[ <TOOLCALL>[",
    "llama3_json": "<|start_header_id|> + '\"parameters\": '",
    "hermes": '<tool_call>\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}',
}


@pytest.mark.parametrize("name", MARKS)
def test_each_format_of_calls(name: str) -> None:
    assert tool_format_of("{{ bos_token }}" + MARKS[name]) is TOOL_PARSERS[name]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("<|channel|> <|message|>", "openai_gptoss"),
        ("[THINK]x[/THINK]", "mistral"),
        ("<｜Assistant｜>{{ content.split('</think>')[-1] }}", "deepseek_r1"),
        ("{% if not thinking %}<｜Assistant｜></think>", "deepseek_v3"),
        ("[gMASK]<sop><think></think>", "glm45"),
        ("<|im_start|>assistant\n<think>\n\n</think>", "qwen3"),
    ],
)
def test_each_format_of_thoughts(source: str, name: str) -> None:
    assert reasoning_format_of(source) is REASONING_PARSERS[name]


def test_real_templates() -> None:
    """Of the dozen that are kept for tests, two are of models that write calls."""
    found = {
        name: known.names[0]
        for name, source in TEMPLATES.items()
        if (known := tool_format_of(source)) is not None
    }
    assert found == {"qwen2.5-instruct": "hermes", "granite-3.0-instruct": "granite"}
    assert {name for name, source in TEMPLATES.items() if reasoning_format_of(source)} == set()
    assert {name for name, source in TEMPLATES.items() if knows_tools(source)} == {
        "qwen2.5-instruct",
        "granite-3.0-instruct",
    }


@pytest.mark.parametrize(
    ("source", "knows"),
    [
        ("{%- if tools %}x{% endif %}", True),
        ("{{ tools | tojson }}", True),
        ("{% if x %}\n{% for t in tools %}{% endfor %}{% endif %}", True),
        ("You have no tools. {{ messages }} tools", False),
        ("{{ my_tools_list }}", False),
    ],
)
def test_templates_that_show_tools(source: str, knows: bool) -> None:
    assert knows_tools(source) is knows


def test_flags_have_every_name() -> None:
    assert set(get_args(ToolCallParser)) == {"auto", "none", *TOOL_PARSERS}
    assert set(get_args(ReasoningParser)) == {"auto", "none", *REASONING_PARSERS}
