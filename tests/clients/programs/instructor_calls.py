"""Calls of the package `instructor`, without and with a response model."""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """What the reply must be."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["function", "class"]
    good: bool


base_url, model, prompt, max_tokens = *sys.argv[1:4], int(sys.argv[4])
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
print(json.dumps(texts))
