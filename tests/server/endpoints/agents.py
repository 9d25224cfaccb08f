"""What the clients of Messages and Responses are tried on: a model that looks, then answers."""

from __future__ import annotations

from engine.messages.request import Request
from engine.messages.step_output import Finish
from tests.fakes import says
from tests.server.endpoints.chat.tool_replies import call

KEY = "secret"

TEMPLATE = (
    "{% for t in tools or [] %}[tool]{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}[assistant]"
    '{# <tool_call>{"name": ..., "arguments": ...}</tool_call> #}'
)


def looks_then_answers(request: Request, choice: int, position: int) -> int | Finish:
    """The model thinks and calls a tool; once it has the tool's result it answers."""
    prompt = bytes(request.prompt_token_ids.astype("uint8")).decode()
    has_result = "[tool]there" in prompt
    first = f"<think>I must look.</think>Wait.{call(at='it')}"
    return says("It is there." if has_result else first)(request, choice, position)
