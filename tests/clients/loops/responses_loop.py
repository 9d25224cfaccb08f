"""The shapes that a coding agent sends to Responses, over the package `openai`.

Everything is streamed and nothing stored: each turn sends instructions, a developer's message, all
items so far as they came, thoughts with their encrypted content among them, and what tools said.
"""

from __future__ import annotations

from typing import Any

import openai
from toolbox import RESPONSES_TOOLS, arguments, note, report, run

base_url, model, question = arguments()
client = openai.OpenAI(base_url=base_url, api_key="none")
turns: list[Any] = [
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": question}],
    },
]
kinds: list[str] = []
for _ in range(5):
    stream = client.responses.create(
        model=model,
        instructions="Use the tools.",
        input=turns,
        tools=RESPONSES_TOOLS,
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        stream=True,
        prompt_cache_key="0199-session",
        temperature=0,
    )
    items: list[Any] = []
    for event in stream:
        if event.type == "response.output_item.done":
            items.append(event.item)
        elif event.type == "response.completed":
            assert [item.id for item in event.response.output] == [item.id for item in items]
            answer = event.response.output_text
    turns += [item.model_dump(exclude_none=True) for item in items]
    kinds += [item.type for item in items]
    calls = [item for item in items if item.type == "function_call"]
    for call in calls:
        said = run(call.name, call.arguments)
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": said})
    if not calls:
        note("items", answer)
        break
assert kinds == ["reasoning", "function_call"] * 2 + ["reasoning", "message"], kinds
report()
