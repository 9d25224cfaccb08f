"""Calls of the models of the package `dspy`: chats by two providers, Responses and completions."""

from __future__ import annotations

from typing import Any

import dspy
from asked import arguments, report

base_url, model, prompt, max_tokens = arguments()
common: dict[str, Any] = {
    "api_base": base_url,
    "api_key": "none",
    "temperature": 0,
    "max_tokens": max_tokens,
    "cache": False,
}
models = {
    "chat of openai": dspy.LM(f"openai/{model}", **common),
    "chat of hosted_vllm": dspy.LM(f"hosted_vllm/{model}", **common),
    "chat of responses": dspy.LM(f"openai/{model}", model_type="responses", **common),
    "text": dspy.LM(f"openai/{model}", model_type="text", **common),
}


def text_of(said: Any) -> str:
    """What the model says, which some of them give with its thoughts beside it."""
    return str(said["text"] if isinstance(said, dict) else said)


report({name: text_of(each(prompt)[0]) for name, each in models.items()})
