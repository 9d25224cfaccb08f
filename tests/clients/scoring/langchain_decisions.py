"""Decisions of the package `langchain-openai`, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

from case import ANGRY, LEVELS, STATE, TEAM, TEAMS, URGENCY, base_url, model, note, report
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score

decisions = OpenAIDecisions(model=model, base_url=base_url, api_key="none")
asked: Any = {
    "input": STATE,
    "questions": {
        "angry": Predicate(instructions=ANGRY),
        "team": Choice(instructions=TEAM, choices=TEAMS),
        "urgency": Score(instructions=URGENCY, levels=LEVELS),
    },
}
for name, found in {
    "sync": decisions.invoke(asked),
    "async": asyncio.run(decisions.ainvoke(asked)),
}.items():
    note(
        name,
        found.predicates["angry"].probability,
        found.choices["team"].probabilities,
        found.scores["urgency"].probabilities.values(),
    )
report()
