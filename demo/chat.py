"""The demo model's chat template and the markers it is written with.

A model this small copies well and spells badly, so the template keeps to what can be copied token
by token: a tool is shown as the call that it asks for, with types where the values go, and a blank
comes before users' and tools' texts, because a word or number after a blank is another token than
one at the beginning of a line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

TURN_BEGIN, TURN_END = "<|im_start|>", "<|im_end|>"
MARKERS = (
    *(TURN_BEGIN, TURN_END, "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
"""Special tokens beside `<|endoftext|>`, in the order of their ids, which are the last ones."""
REPLY_BEGIN = TURN_BEGIN + "assistant\n"
NO_THOUGHTS = "<think>\n\n</think>\n\n"

# Descriptions are left out: nothing of their size was learned. Thoughts are shown where they belong
# to calls that are being answered, if the client sends them.
CHAT_TEMPLATE = """\
{%- set last = namespace(user=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if messages and messages[0].role == 'system' -%}
{{- '<|im_start|>system ' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- if tools -%}
{{- '<|im_start|>tools\\n' -}}
{%- for tool in tools -%}
{{- '{"name": "' + tool.function.name + '", "arguments": {' -}}
{%- for name, schema in tool.function.parameters.get('properties', {}).items() -%}
{{- '"' + name + '": ' + (schema.type if schema.type is string else 'any') -}}
{{- '' if loop.last else ', ' -}}
{%- endfor -%}
{{- '}}\\n' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if message.reasoning_content and loop.index0 > last.user -%}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{%- if message.content -%}{{- message.content -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<tool_response> ' + message.content + '</tool_response>\\n' -}}
{%- elif message.role == 'user' or not loop.first -%}
{{- '<|im_start|>' + message.role + ' ' + message.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


def render(messages: Sequence[Message], tools: Sequence[Tool], **variables: object) -> str:
    """The text that the template makes of a conversation, as transformers renders it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[list(messages)],
        tools=list(tools) or None,
        chat_template=CHAT_TEMPLATE,
        **variables,
    )
    text: str = rendered[0]
    return text


def prompt_of(messages: Sequence[Message], tools: Sequence[Tool], *, thinks: bool = True) -> str:
    """The prompt for the reply to a conversation."""
    return render(messages, tools, add_generation_prompt=True, enable_thinking=thinks)


def reply_of(messages: Sequence[Message], reply: Message) -> str:
    """What the model has to write for `reply` to become the conversation's next message."""
    before = render(messages, ()) + REPLY_BEGIN
    whole = render([*messages, reply], ())
    assert whole.startswith(before)
    return whole[len(before) :].removesuffix("\n")
