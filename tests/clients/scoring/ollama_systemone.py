"""System One of the package `ollama`, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

from case import NAMED, STATE, base_url, model, note, report
from ollama import AsyncClient, Client

host = base_url.removesuffix("/v1")
asked: dict[str, Any] = {"model": model, "state": STATE, "questions": NAMED, "keep_alive": "5m"}
for name, found in {
    "sync": Client(host).systemone(**asked),
    "async": asyncio.run(AsyncClient(host).systemone(**asked)),
    "a state of JSON": Client(host).systemone(**asked | {"state": {"mail": [STATE]}}),
}.items():
    answers = found.answers
    assert found.usage.input_tokens > 0
    assert 0 < answers["angry"].noul < 1
    if name != "a state of JSON":
        levels = answers["urgency"].probabilities.values()
        note(name, answers["angry"].noul, answers["team"].probabilities, levels)
report()
