"""Traces of decisions on a fake engine: what they count is what the reply and the metrics say."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.collector import attributes, collecting
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, in_process

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
BODY: dict[str, Any] = {
    "model": MODEL,
    "input": "It is late.",
    "questions": [
        {"type": "predicate", "instructions": "They are angry."},
        {"type": "choice", "instructions": "?", "choices": [{"value": v} for v in "abcde"]},
        {"type": "score", "instructions": "?", "levels": [{"label": "low"}, {"label": "high"}]},
    ],
    "permute": 2,
    "diagnostics": True,
}


async def test_traces_count_decisions() -> None:
    with collecting() as collector:
        engine, url = FakeEngine(max_model_len=2048), collector.url
        async with in_process(engine, chat_template=TEMPLATE, otlp_traces_endpoint=url) as site:
            reply = (await site.client.post("/v1/decisions", json=BODY)).json()
            await site.client.post("/v1/decisions", json=BODY | {"questions": []})
            assert site.context.traces is not None
            await asyncio.to_thread(site.context.traces.close)
            labels = site.metric("tailrace_decision_labels_total")
            cached = site.metric("tailrace_decision_cached_tokens_total")
        decided, refused = map(attributes, collector.spans)
    assert decided["tailrace.decisions.num_questions"] == 3
    assert decided["tailrace.decisions.num_labels"] == labels == 2 * (2 + 5 + 2)
    assert decided["gen_ai.usage.cache_read.input_tokens"] == cached > 0
    masses = [each["diagnostics"]["label_mass"] for each in reply["answers"]]
    assert decided["tailrace.decisions.lowest_label_mass"] == min(masses) < max(masses)
    assert not [name for name in refused if name.startswith("tailrace.decisions.")]
