"""A loop over stored Responses of the package `openai`: each turn sends results alone.

Turns go on by the id of the last response, or by references to its items. The prefix cache has all
that a turn goes on with, up to the last whole block.
"""

from __future__ import annotations

from typing import Any

import openai
from toolbox import RESPONSES_TOOLS, arguments, note, report, run

BLOCK = 16
base_url, model, question = arguments()
client = openai.OpenAI(base_url=base_url, api_key="none")


def loop(by_items: bool) -> str:
    """Run it; returns the answer."""
    turn: list[Any] = [{"role": "user", "content": question}]
    past: list[Any] = []
    previous, known = None, 0
    for _ in range(5):
        response = client.responses.create(
            model=model,
            input=past + turn,
            tools=RESPONSES_TOOLS,
            temperature=0,
            previous_response_id=None if by_items else previous,
        )
        assert response.usage is not None
        cached = response.usage.input_tokens_details.cached_tokens
        assert cached >= known - BLOCK, (cached, known)
        known = response.usage.total_tokens
        previous = response.id
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            listed = client.responses.input_items.list(response.id, order="asc", limit=100)
            assert next(item.type for item in listed) == "message"
            client.responses.delete(response.id)
            return response.output_text
        if by_items:
            past += turn + [{"type": "item_reference", "id": item.id} for item in response.output]
        turn = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": run(call.name, call.arguments),
            }
            for call in calls
        ]
    raise AssertionError("no answer")


note("by responses", loop(by_items=False))
note("by items", loop(by_items=True))
report()
