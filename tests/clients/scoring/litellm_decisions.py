"""Decisions and System One of the package `litellm`, by providers that have them."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
from case import NAMED, QUESTIONS, STATE, base_url, model, note, report

server: dict[str, Any] = {"api_base": base_url, "api_key": "none"}


def note_response(name: str, response: Any) -> None:
    """Note an answer in OpenAI's shape, or in TypeSafe's."""
    found = response if isinstance(response, dict) else response.model_dump()
    answers = found["answers"]
    if isinstance(answers, dict):
        levels = answers["urgency"]["probabilities"].values()
        note(name, answers["angry"]["noul"], answers["team"]["probabilities"], levels)
        return
    angry, team, urgency = answers
    note(
        name,
        angry["probability"],
        {each["value"]: each["probability"] for each in team["probabilities"]},
        [each["probability"] for each in urgency["probabilities"]],
    )


wish: dict[str, Any] = {"input": STATE, "questions": QUESTIONS, **server}
note_response("decisions", litellm.decisions(model=f"openai/{model}", **wish))
later = litellm.adecisions(model=f"openai/{model}", **wish)
note_response("decisions, async", asyncio.run(later))
wish = {"state": STATE, "questions": NAMED, **server}
for provider in ("hosted_vllm", "ollama", "lm_studio"):
    response = litellm.systemone(model=f"{provider}/{model}", **wish)
    note_response(f"systemone of {provider}", response)
report()
