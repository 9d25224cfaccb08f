"""Questions for a fake engine, sent, and the prompts that the engine gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.server.conftest import MODEL, Site, error_of

CHOICE: dict[str, Any] = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "payments"}, {"value": True}],
}
PREDICATE = {"type": "predicate", "instructions": "They are angry."}
SCORE = {
    "type": "score",
    "instructions": [{"type": "input_text", "text": "How urgent?"}],
    "levels": [{"label": "low"}, {"label": "high", "description": "today"}],
}


def body_of(**changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "input": "It is late.",
        "questions": [CHOICE, PREDICATE, SCORE],
    } | changes


async def post(site: Site, status: int = 200, **changes: Any) -> Any:
    reply = await site.client.post("/v1/decisions", json=body_of(**changes))
    assert reply.status_code == status, reply.text
    return reply.json() if status == 200 else error_of(reply)


def prompts_of(site: Site) -> list[str]:
    """The prompts of the last request, whole."""
    asked = site.engine.scored[-1]
    query = bytes(asked.query_token_ids.tolist())
    items = np.split(asked.item_token_ids, np.cumsum(asked.item_lens)[:-1])
    return [(query + bytes(item.tolist())).decode() for item in items]
