"""Small chat templates of our own, each in the style of a family of models.

A template is one skeleton around the way in which its family writes the calls of a reply.
"""

# ruff: noqa: RUF001

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

_SKELETON = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif -%}
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.role == 'assistant' and THINKS and message.reasoning_content -%}
OPEN{{ message.reasoning_content }}CLOSE
{%- endif -%}
{{ message.content }}
{%- if message.tool_calls %}{% set calls = message.tool_calls %}CALLS{% endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""


@dataclass(frozen=True)
class Family:
    """How a family writes the calls of a reply, and its thoughts.

    Attributes:
        calls: a template of the list `calls`.
        think: what opens thoughts and what closes them; None for a family that does not think.
        spells: values are written as they are, so that a text that spells a number is one.
        is_lossy: not every value can be read back: texts and numbers alone are tried.
    """

    calls: str
    think: tuple[str, str] | None = None
    spells: bool = False
    is_lossy: bool = False

    @property
    def source(self) -> str:
        """The chat template."""
        begin, end = self.think or ("", "")
        source = _SKELETON.replace("CALLS", self.calls).replace("THINKS", str(bool(self.think)))
        return source.replace("OPEN", begin).replace("CLOSE", end)

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """The text of some calls."""
        own = [
            {"id": f"call{i:05}", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        return _compiled(self.calls).render(calls=own)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@cache
def _compiled(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


_ENVIRONMENT = jinja2.Environment()
_ENVIRONMENT.filters["tojson"] = _to_json


def _each(text: str, between: str = "") -> str:
    """A template of every call; `NAME`, `ARGS` and `FIELDS(...)` are short for what they say."""
    inner = text.replace("NAME", "{{ call.function.name }}")
    inner = inner.replace("ARGS", "{{ call.function.arguments | tojson }}")
    stop = "{%- if not loop.last -%}" + between + "{%- endif -%}" if between else ""
    return "{%- for call in calls -%}" + inner + stop + "{%- endfor -%}"


def _fields(text: str) -> str:
    """A template of every argument; `VALUE` is a text as it is, or else JSON."""
    value = "{{ value if value is string else value | tojson }}"
    inner = text.replace("KEY", "{{ key }}").replace("VALUE", value)
    return "{%- for key, value in call.function.arguments.items() -%}" + inner + "{%- endfor -%}"


_OBJECT = '{"name": "NAME", "arguments": ARGS}'
_THINK = ("<think>", "</think>")
_LINE = "{{ '\\n' }}"
_DSML = "｜DSML｜"

_BARE = """
{%- macro bare(value) -%}
{%- if value is string -%}<|"|>{{ value }}<|"|>
{%- elif value is mapping -%}
{{ '{' }}{% for k, v in value.items() %}{{ k }}:{{ bare(v) }}{% if not loop.last %},{% endif %}
{%- endfor %}{{ '}' }}
{%- elif value is sequence -%}
[{% for v in value %}{{ bare(v) }}{% if not loop.last %},{% endif %}{% endfor %}]
{%- else -%}{{ value | tojson }}{%- endif -%}
{%- endmacro -%}
"""
_TAGS = """
{%- macro tags(value) -%}
{%- if value is mapping -%}
{%- for k, v in value.items() %}]~[<{{ k }}>{{ tags(v) }}]~[</{{ k }}>{% endfor -%}
{%- elif value is string -%}{{ value }}
{%- elif value is sequence -%}
{%- for v in value %}]~[<item>{{ tags(v) }}]~[</item>{% endfor -%}
{%- else -%}{{ value | tojson }}{%- endif -%}
{%- endmacro -%}
"""

FAMILIES: dict[str, Family] = {
    "listed": Family(f"<TOOLCALL>[{_each(_OBJECT, ', ')}]</TOOLCALL>", _THINK),
    "lines": Family(
        f"{_LINE}<tool_calls>{_LINE}{_each(_OBJECT + _LINE)}</tool_calls>", ("[THINK]", "[/THINK]")
    ),
    "renamed": Family(
        "<|START_ACTION|>["
        + _each(
            '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "NAME", "parameters": ARGS}', ", "
        )
        + "]<|END_ACTION|>",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "keyed": Family("<|tools_prefix|>[" + _each('{"NAME": ARGS}', ", ") + "]<|tools_suffix|>"),
    "with_ids": Family(
        "<tool_calls>["
        + _each('{"name": "NAME", "arguments": ARGS, "id": "{{ call.id }}"}', ", ")
        + "]</tool_calls>"
    ),
    "fenced": Family(
        f"{_LINE}Action:{_LINE}```json{_LINE}[" + _each(_OBJECT, ", ") + f"]{_LINE}```"
    ),
    "plugin": Family(_each(f"<|action_start|><|plugin|>{_LINE}{_OBJECT}<|action_end|>")),
    "leading": Family("[" + _each(_OBJECT, ", ") + "]"),
    "numbered": Family(
        "<|tool_calls_section_begin|>"
        + _each(
            "<|tool_call_begin|>functions.NAME:{{ loop.index0 }}<|tool_call_argument_begin|>ARGS"
            "<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>",
        _THINK,
    ),
    "function_tag": Family(_each("<function=NAME>ARGS</function>")),
    "identified": Family(
        "<|tool_calls|>"
        + _each(
            "<|tool_call:begin|>{{ call.id }}<|tool_call:name|>NAME<|tool_call:args|>ARGS"
            "<|tool_call:end|>"
        )
        + "<|calls|>"
    ),
    "python": Family(
        "<|tool_call_start|>["
        + _each(
            "NAME(" + _fields("KEY={{ value | tojson }}{% if not loop.last %}, {% endif %}") + ")",
            ", ",
        )
        + "]<|tool_call_end|>",
        _THINK,
    ),
    "bare": Family(
        _BARE
        + _each(
            "<|tool_call>call:NAME{{ '{' }}"
            + _fields("KEY:{{ bare(value) }}{% if not loop.last %},{% endif %}")
            + "{{ '}' }}<tool_call|>"
        ),
        ("<|channel>thought\n", "<channel|>"),
    ),
    "invoked": Family(
        f"{_LINE}<mm:tool_call>{_LINE}"
        + _each(
            f'<invoke name="NAME">{_LINE}'
            + _fields(f'<parameter name="KEY">VALUE</parameter>{_LINE}')
            + f"</invoke>{_LINE}"
        )
        + "</mm:tool_call>",
        _THINK,
        spells=True,
    ),
    "typed": Family(
        f"<{_DSML}tool_calls>{_LINE}"
        + _each(
            f'<{_DSML}invoke name="NAME">{_LINE}'
            + _fields(
                f'<{_DSML}parameter name="KEY" string="'
                "{{ 'true' if value is string else 'false' }}\">VALUE"
                f"</{_DSML}parameter>{_LINE}"
            )
            + f"</{_DSML}invoke>{_LINE}"
        )
        + f"</{_DSML}tool_calls>"
    ),
    "suffixed": Family(
        "<calls:own>"
        + _each(
            f"<call:own>NAME<sep:own>{_LINE}"
            + _fields(f"<key:own>KEY</key:own>{_LINE}<value:own>VALUE</value:own>{_LINE}")
            + "</call:own>",
            _LINE,
        )
        + "</calls:own>",
        ("<think:own>", "</think:own>"),
        spells=True,
    ),
    "tagged": Family(
        _TAGS
        + "]~[<tool_call>"
        + _each(
            ']~[<invoke name="NAME">'
            + _fields("]~[<KEY>{{ tags(value) }}]~[</KEY>")
            + "]~[</invoke>"
        )
        + "]~[</tool_call>",
        ("<mm:think>", "</mm:think>"),
        spells=True,
        is_lossy=True,
    ),
}


def render(source: str, messages: Sequence[Any], tools: Any, generates: bool) -> str:
    """A conversation by a template."""
    return _compiled(source).render(messages=messages, tools=tools, add_generation_prompt=generates)
