"""Traces of decisions on a fake engine: what they count is what the reply and the metrics say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from server.scoring.label_texts import LabelTexts
from server.scoring.labels import Label
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


@pytest.mark.parametrize(
    ("num_chars", "num_questions", "num_threads"), [(9000, 50, 0), (40_000, 1, 2)]
)
async def test_only_prompts_that_take_long_are_made_on_a_thread(
    num_chars: int, num_questions: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of fifty questions is with the engine before the bodies of others are read."""
    threads = []

    async def to_thread(function: Any, *args: Any) -> Any:
        threads.append(function)
        return function(*args)

    question = {
        "type": "choice",
        "instructions": "Where?",
        "choices": [{"value": v} for v in "abcd"],
    }
    asked = {
        "model": MODEL,
        "input": "so " * (num_chars // 3),
        "questions": [question] * num_questions,
    }
    async with in_process(FakeEngine(max_model_len=50_000)) as site:
        monkeypatch.setattr(asyncio, "to_thread", to_thread)
        reply = await site.client.post("/v1/decisions", json=asked)
    assert reply.status_code == 200, reply.text
    assert len(threads) == num_threads


async def test_labels_are_made_once_for_prompts_that_end_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, ...]] = []

    def ids(texts: LabelTexts, prompt_end: str, labels: Sequence[str]) -> list[Label]:
        made.append(tuple(labels))
        return found(texts, prompt_end, labels)

    found = LabelTexts.ids
    monkeypatch.setattr(LabelTexts, "ids", ids)
    asked = BODY | {"questions": BODY["questions"] * 3, "permute": 1}
    async with in_process(FakeEngine(max_model_len=2048), chat_template=TEMPLATE) as site:
        reply = (await site.client.post("/v1/decisions", json=asked)).json()
    assert made == [("yes", "no"), ("A", "B", "C", "D", "E"), ("0", "1")]
    assert [each["type"] for each in reply["answers"]] == ["predicate", "choice", "score"] * 3
