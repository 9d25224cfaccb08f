"""Decisions of the package `openai`: sync, async, and its runners that choose actions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from case import QUESTIONS, STATE, base_url, model, note_decision, report
from openai import AsyncOpenAI, OpenAI
from openai.lib.decisions_tool_runner import AsyncDecisionsToolRunner, DecisionsToolRunner

questions: Any = QUESTIONS
asked: dict[str, Any] = {"model": model, "input": STATE, "questions": questions}
task: Any = {"model": model, "input": "Do the dishes."}
MOST_STEPS = 4


class Dishes:
    """What is left to do, which every action makes less."""

    def __init__(self) -> None:
        self.left = ["wash", "dry"]

    def observe(self) -> str:
        """What is seen."""
        return f"Left: {', '.join(self.left) or 'nothing'}."

    def candidates(self, _: object) -> Any:
        """An action for all that is left, and the end."""
        actions = [
            {"id": each, "description": f"to {each} them", "execute": partial(self.do, each)}
            for each in self.left
        ]
        return [*actions, {"id": "done", "description": "Nothing is left.", "done": True}]

    def do(self, action: str) -> None:
        """Do one of them."""
        self.left.remove(action)


class LaterDishes(Dishes):
    """The same, whose actions take time."""

    async def do(self, action: str) -> None:  # type: ignore[override]
        """Do one of them, later."""
        self.left.remove(action)


def check(result: Any, dishes: Dishes) -> None:
    """Check that the run ended, and that each decision led to what it chose."""
    assert result["status"] == "unverified", result
    done = result["completed_candidate_ids"]
    assert sorted([*done, *dishes.left]) == ["dry", "wash"]
    chosen = [decision.answers[0].choice for decision in result["decisions"]]
    assert chosen == [*done, "done"] or (not dishes.left and chosen == done)
    assert all(decision.answers[0].name == "next_action" for decision in result["decisions"])


client = OpenAI(base_url=base_url, api_key="none")
note_decision("sync", client.decisions.create(**asked))
dishes = Dishes()
runner = DecisionsToolRunner(observe=dishes.observe, candidates=dishes.candidates)
check(runner.run(client, task, max_steps=MOST_STEPS), dishes)


async def main() -> None:
    """Do the same with the other client."""
    async with AsyncOpenAI(base_url=base_url, api_key="none") as later:
        note_decision("async", await later.decisions.create(**asked))
        dishes = LaterDishes()

        async def observe() -> str:
            return dishes.observe()

        async def candidates(seen: object) -> Any:
            return dishes.candidates(seen)

        runner = AsyncDecisionsToolRunner(observe=observe, candidates=candidates)
        check(await runner.run(later, task, max_steps=MOST_STEPS), dishes)


asyncio.run(main())
report()
