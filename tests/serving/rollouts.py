"""A trainer's requests to a real server, and what weights decide of its replies."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import httpx

from tests.serving.process import Server

PROMPT = list(range(40, 90))
DRAWN = {"max_tokens": 12, "seed": 5, "logprobs": 2, "n": 2, "ignore_eos": True}


def post(server: Server, path: str, body: Any = None, **query: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, params=query, timeout=120)


def done(server: Server, path: str, body: Any = None, **query: Any) -> Any:
    reply = post(server, path, body, **query)
    assert reply.status_code == 200, reply.text
    return reply.json()


def generated(server: Server, *, shares: bool = False, **params: Any) -> Any:
    """Choices; bits are equal only where no cached prefix changes what a step computes.

    Args:
        shares: prefixes of other requests may be found.
    """
    body: dict[str, Any] = {"token_ids": PROMPT, "sampling_params": DRAWN | params}
    if not shares:
        body["cache_salt"] = uuid.uuid4().hex
    return done(server, "/inference/v1/generate", body)["choices"]


def numbers(choices: list[dict[str, Any]]) -> list[Any]:
    """What weights decide of choices, to the last bit."""
    names = "token_ids", "logprobs", "routed_experts"
    return [[choice[name] for name in names] for choice in choices]


def scored(server: Server) -> Any:
    body = {"query": "def f(", "items": ["a", "b"], "label_token_ids": [5, 6]}
    return [row["score"] for row in done(server, "/generative_scoring", body)["data"]]


def decided(server: Server) -> Any:
    choices = [{"value": value} for value in ("left", "right", "neither")]
    question = {"type": "choice", "instructions": "Which?", "choices": choices}
    model = server.client.models.list().data[0].id
    body = {"model": model, "input": "The sign points left.", "questions": [question]}
    return done(server, "/v1/decisions", body)["answers"]


def update(server: Server, folder: Path, version: str, **fields: Any) -> None:
    body = {"weight_dir": str(folder), "weight_version": version, **fields}
    done(server, "/update_weights", body)
