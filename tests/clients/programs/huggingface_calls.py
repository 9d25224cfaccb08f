"""huggingface_hub's client: a chat, the same streamed, and structured output by its own types."""

from __future__ import annotations

import json
from typing import Any

from asked import arguments, report
from huggingface_hub import ChatCompletionInputResponseFormatJSONSchema, InferenceClient

base_url, model, prompt, max_tokens = arguments()
client = InferenceClient(base_url=base_url, api_key="none")
messages = [{"role": "user", "content": prompt}]
options: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0.0}

chat = client.chat_completion(messages, **options)
pieces = [
    chunk.choices[0].delta.content or ""
    for chunk in client.chat_completion(messages, stream=True, **options)
    if chunk.choices
]

SCHEMA: Any = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
OPTIONS: dict[str, Any] = {"model": model, "max_tokens": 400, "temperature": 0.0}
named: Any = {"name": "count", "schema": SCHEMA, "strict": True}
typed = ChatCompletionInputResponseFormatJSONSchema(type="json_schema", json_schema=named)
older = {"type": "json_object", "value": SCHEMA}
response_format: Any
for response_format in (typed, older):
    reply = client.chat_completion(messages, response_format=response_format, **OPTIONS)
    found = json.loads(reply.choices[0].message.content)
    assert set(found) == {"n"}, found
    assert 0 <= found["n"] <= 99, found

texts = {"chat": chat.choices[0].message.content, "chat streamed": "".join(pieces)}
report(texts)
