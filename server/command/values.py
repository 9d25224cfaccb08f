"""The kinds of values that settings have, and how their texts are read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _count(value: Any) -> Any:
    """Read `4k` as 4000 and `4K` as 4096, as vLLM does."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", value) if isinstance(value, str) else None
    return int(float(match[1]) * _UNITS[match[2]]) if match and match[2] else value


def _several(value: Any) -> Any:
    """Read a list, a JSON list, or words with commas between.

    An empty word is refused, as `--api-key "$KEY"` gives it where the variable is not set: it would
    be a key that nobody can send, or a host that nobody asks for.
    """
    if isinstance(value, str):
        if value.startswith("["):
            value = orjson.loads(value)
        else:
            value = [word.strip() for word in value.split(",") if word.strip()] or [""]
    if isinstance(value, list) and "" in value:
        raise PydanticCustomError("empty", "a value is empty; name one, or leave all of it out")
    return value


def _json(value: Any) -> Any:
    """Turn what a file spells out as YAML into the text that a flag would have."""
    return orjson.dumps(value).decode() if isinstance(value, dict) else value


Json = Annotated[str, NoDecode, BeforeValidator(_json)]
Count = Annotated[int, BeforeValidator(_count)]
Several = Annotated[list[str], NoDecode, BeforeValidator(_several)]
LogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]
DtypeName = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
ToolCallParser = Literal[
    "auto",
    "none",
    "openai",
    "qwen3_coder",
    "qwen3_xml",
    "glm45",
    "glm47",
    "deepseek_v3",
    "deepseek_v31",
    "mistral",
    "phi4_mini_json",
    "pythonic",
    "llama4_pythonic",
    "llama3_json",
    "llama4_json",
    "lfm2",
    "granite",
    "kimi_k2",
    "nemotron_json",
    "hermes",
]
ReasoningParser = Literal[
    "auto",
    "none",
    "openai_gptoss",
    "openai",
    "mistral",
    "deepseek_v3",
    "deepseek_r1",
    "glm45",
    "qwen3",
]
