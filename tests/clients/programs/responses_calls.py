"""Calls of the Responses of the package `openai`."""

from __future__ import annotations

from typing import Any

import openai
from asked import arguments, report

base_url, model, prompt, max_tokens = arguments()
client = openai.OpenAI(base_url=base_url, api_key="none")
common: dict[str, Any] = {"model": model, "max_output_tokens": max_tokens, "store": False}
common["temperature"] = 0

response = client.responses.create(input=prompt, **common)
turns: list[Any] = [{"role": "user", "content": prompt}]
texts = {
    "chat response": response.output_text,
    "chat of items": client.responses.create(input=turns, **common).output_text,
}
deltas = []
with client.responses.stream(input=prompt, **common) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            deltas.append(event.delta)
texts["chat stream"] = "".join(deltas)
# The reply goes back as it came, with a question after it.
items = [item.model_dump() for item in response.output]
more = client.responses.create(input=[*turns, *items, *turns], **common)
texts["another turn"] = more.output_text
report(texts)
