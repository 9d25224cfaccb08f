"""Requests and replies as they lie in a file for an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from engine.audit.drawn import DrawnChoice
from server.audit.parameters import Served
from server.audit.records import read_choices
from server.config import SamplingDefaults, ServerConfig

Json = dict[str, Any]


def served(**given: Any) -> Served:
    """A server with two ends of text, whose words have one id for each letter."""
    defaults = SamplingDefaults(**given.pop("defaults", {}))
    config = ServerConfig(model_names=("m",), defaults=defaults)
    fields = {"config": config, "eos_token_ids": (0, 2), "keeps_draws": None, **given}
    return Served(words=lambda words: tuple(tuple(map(ord, word)) for word in words), **fields)


def write(path: Path, *pairs: tuple[Json, Any]) -> Path:
    lines = [orjson.dumps({"request": body, "response": reply}) for body, reply in pairs]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def read(path: Path, body: Json, reply: Any, **given: Any) -> list[DrawnChoice]:
    return list(read_choices(write(path / "file.jsonl", (body, reply)), served(**given)))


def completion(*outputs: list[int], prompt: list[int] | None = None, **fields: Any) -> Json:
    """A reply whose choices have these tokens."""
    choices = [
        {"index": i, "text": "", "token_ids": output, "prompt_token_ids": prompt or [7, 8]}
        for i, output in enumerate(outputs)
    ]
    return {"object": "text_completion", "choices": choices, **fields}
