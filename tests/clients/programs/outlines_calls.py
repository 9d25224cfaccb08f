"""Calls of the package `outlines`, by its models for OpenAI's server and for vLLM's."""

from __future__ import annotations

import re
from typing import Any

import openai
import outlines
from asked import arguments, report
from outlines.types import Regex
from structured import STRUCTURED_TOKENS, Answer, checked

base_url, model, prompt, max_tokens = arguments()
client = openai.OpenAI(base_url=base_url, api_key="none")
texts: dict[str, Any] = {}
options: dict[str, Any] = {"temperature": 0}
makers = {"openai": outlines.from_openai, "vllm": outlines.from_vllm}
for name, make in makers.items():
    each = make(client, model)
    texts[f"chat of {name}"] = each(prompt, max_tokens=max_tokens, **options)
    texts[f"chat of {name}, a stream"] = "".join(
        each.stream(prompt, max_tokens=max_tokens, **options)
    )
    found = each(prompt, Answer, max_tokens=STRUCTURED_TOKENS, **options)
    texts[f"structured of {name}"] = checked(found)
vllm = outlines.from_vllm(client, model)
texts["regex"] = vllm(prompt, Regex(r"[a-f]{3}-[0-9]{2}"), max_tokens=STRUCTURED_TOKENS, **options)
assert re.fullmatch(r"[a-f]{3}-[0-9]{2}", texts["regex"]), texts["regex"]
report(texts)
