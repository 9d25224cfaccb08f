"""System One of the package `typesafe-sdk`, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

from case import ANGRY, LEVELS, STATE, TEAM, TEAMS, URGENCY, base_url, model, note, report
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient

server: dict[str, Any] = {"base_url": base_url.removesuffix("/v1"), "api_key": "none"}
questions: Any = {
    "angry": Noul(instructions=ANGRY),
    "team": Choice(instructions=TEAM, criteria=TEAMS),
    "urgency": Score(instructions=URGENCY, criteria=LEVELS),
}


async def later() -> Any:
    """The answers by the async client."""
    async with AsyncTypeSafeClient(**server) as client:
        return await client.system_one(STATE, questions, model=model)


with TypeSafeClient(**server) as client:
    now = client.system_one(STATE, questions, model=model)
for name, found in {"sync": now, "async": asyncio.run(later())}.items():
    note(
        name,
        found.nouls["angry"].noul,
        found.choices["team"].probabilities,
        found.scores["urgency"].probabilities.values(),
    )
report()
