"""Calls of the package `inspect-ai`."""

from __future__ import annotations

import asyncio

from asked import arguments, report
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.util import json_schema
from structured import Answer

base_url, model, prompt, max_tokens = arguments()


async def call(provider: str, **changes: object) -> str:
    """What a model of one of its providers says."""
    config = GenerateConfig(**{"temperature": 0, "max_tokens": max_tokens, **changes})
    async with get_model(
        f"{provider}/{model}", base_url=base_url, api_key="none", config=config
    ) as named:
        return str((await named.generate(prompt)).completion)


providers = ("openai-api/tailrace", "vllm")
texts = {f"chat of {each}": asyncio.run(call(each)) for each in providers}
schema = ResponseSchema(name="answer", json_schema=json_schema(Answer))
for each in providers:
    said = asyncio.run(call(each, max_tokens=200, response_schema=schema))
    texts[f"structured of {each}"] = Answer.model_validate_json(said).model_dump_json()
report(texts)
