"""Calls of the package `anthropic`."""

from __future__ import annotations

from typing import Any

import anthropic
from asked import arguments, report

base_url, model, prompt, max_tokens = arguments()
messages: Any = [{"role": "user", "content": prompt}]
# It sends the key as X-Api-Key; its addresses begin with /v1 themselves.
client = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none")
common: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": max_tokens}
common["extra_body"] = {"temperature": 0}  # new versions have no argument for it


def text_of(message: anthropic.types.Message) -> str:
    """What the message says."""
    return "".join(block.text for block in message.content if block.type == "text")


(listed,) = client.models.list()
assert (listed.type, listed.id) == ("model", model)
assert client.models.retrieve(model).id == model

message = client.messages.create(**common)
counted = client.messages.count_tokens(model=model, messages=messages)
usage = message.usage
assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
texts = {"chat message": text_of(message)}
with client.messages.stream(**common) as stream:
    texts["chat text stream"] = "".join(stream.text_stream)
    texts["chat stream"] = text_of(stream.get_final_message())
report(texts)
