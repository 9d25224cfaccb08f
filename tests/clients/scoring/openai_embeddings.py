"""Embeddings of the package `openai`: sync and async, as numbers and in base64."""

from __future__ import annotations

import asyncio
from typing import Any

from case import DOCUMENTS, base_url, model, note_vectors, report
from openai import AsyncOpenAI, OpenAI

asked: dict[str, Any] = {"model": model, "input": DOCUMENTS}


async def later() -> Any:
    """The vectors by the async client."""
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        return await client.embeddings.create(**asked)


client = OpenAI(base_url=base_url, api_key="none")
for name, found in {
    "sync, which asks for base64": client.embeddings.create(**asked),
    "sync, as numbers": client.embeddings.create(**asked, encoding_format="float"),
    "async": asyncio.run(later()),
}.items():
    note_vectors(name, [each.embedding for each in found.data])
report()
