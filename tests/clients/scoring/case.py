"""What the programs of this folder are asked, and the line that reports their answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

base_url, model = sys.argv[1:3]
"""The address, which ends in /v1, and the model's name."""
ASKED: dict[str, Any] = json.loads(sys.argv[3])
"""See `tests.clients.test_scoring.ASKED`."""
STATE: str = ASKED["state"]
ANGRY: str = ASKED["angry"]
TEAM: str = ASKED["team"]
TEAMS: dict[str, str] = ASKED["teams"]
URGENCY: str = ASKED["urgency"]
LEVELS: list[str] = ASKED["levels"]
QUERY: str = ASKED["query"]
DOCUMENTS: list[str] = ASKED["documents"]

QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "angry", "instructions": ANGRY},
    {
        "type": "choice",
        "name": "team",
        "instructions": TEAM,
        "choices": [{"value": name, "description": text} for name, text in TEAMS.items()],
    },
    {
        "type": "score",
        "name": "urgency",
        "instructions": URGENCY,
        "levels": [{"label": label} for label in LEVELS],
    },
]
"""As OpenAI's clients ask them."""
NAMED: dict[str, dict[str, Any]] = {
    "angry": {"type": "noul", "instructions": ANGRY},
    "team": {"type": "choice", "instructions": TEAM, "criteria": TEAMS},
    "urgency": {"type": "score", "instructions": URGENCY, "criteria": LEVELS},
}
"""As TypeSafe's clients ask them."""
FOUND: dict[str, Any] = {}


def note(name: str, angry: float, team: dict[str, float], urgency: Iterable[float]) -> None:
    """Note the probabilities of one way of asking: of yes, of each team, of each level."""
    FOUND[name] = {"angry": angry, "team": dict(team), "urgency": list(urgency)}


def note_decision(name: str, decision: Any) -> None:
    """Note a `Decision` of the package `openai`."""
    angry, team, urgency = decision.answers
    assert [answer.name for answer in decision.answers] == ["angry", "team", "urgency"]
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0
    note(
        name,
        angry.probability,
        {each.value: each.probability for each in team.probabilities},
        [each.probability for each in urgency.probabilities],
    )


def note_ranking(name: str, ranking: Iterable[tuple[int, float]]) -> None:
    """Note the documents' indices and scores, the best first."""
    FOUND[name] = [list(pair) for pair in ranking]


def note_vectors(name: str, vectors: Iterable[list[float]]) -> None:
    """Note the documents' vectors."""
    FOUND[name] = {"vectors": list(vectors)}


def report() -> None:
    """Print what was noted as the last line."""
    print(json.dumps(FOUND))
