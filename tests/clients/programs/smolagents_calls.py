"""Calls of the models of the package `smolagents`, a forced call of a tool among them."""

from __future__ import annotations

from asked import arguments, report
from smolagents import ChatMessage, MessageRole, OpenAIModel, tool
from structured import STRUCTURED_TOKENS, Answer, checked


@tool
def square(number: int) -> int:
    """Multiply a number by itself.

    Args:
        number: the number.
    """
    return number * number


base_url, model, prompt, max_tokens = arguments()
named = OpenAIModel(model, api_base=base_url, api_key="none", temperature=0)
messages = [ChatMessage(role=MessageRole.USER, content=prompt)]
texts = {"chat": named.generate(messages, max_tokens=max_tokens).content}
parts = named.generate_stream(messages, max_tokens=max_tokens)
texts["chat of a stream"] = "".join(part.content or "" for part in parts)
schema = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": Answer.model_json_schema(), "strict": True},
}
structured = named.generate(messages, response_format=schema, max_tokens=STRUCTURED_TOKENS)
texts["structured"] = checked(structured.content)
called = named.generate(messages, tools_to_call_from=[square], max_tokens=400)
(call,) = called.tool_calls
assert call.function.name == "square"
report(texts)
