"""Calls of the package `instructor`, without and with a response model."""

from __future__ import annotations

import instructor
from asked import arguments, report
from openai import OpenAI
from structured import Answer

base_url, model, prompt, max_tokens = arguments()
client = instructor.from_openai(OpenAI(base_url=base_url, api_key="none"))
reply = client.chat.completions.create(
    response_model=None,
    model=model,
    messages=[{"role": "user", "content": prompt}],
    temperature=0,
    max_tokens=max_tokens,
)
parsing = instructor.from_openai(
    OpenAI(base_url=base_url, api_key="none"), mode=instructor.Mode.JSON_SCHEMA
)
found = parsing.chat.completions.create(
    response_model=Answer,
    model=model,
    messages=[{"role": "user", "content": prompt}],
    temperature=0,
    max_tokens=200,
    max_retries=0,
)
assert isinstance(found, Answer)
texts = {"chat": reply.choices[0].message.content, "structured": found.model_dump_json()}
report(texts)
