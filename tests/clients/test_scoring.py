"""Unmodified client packages ask for decisions, rankings and vectors, and get what anyone gets.

A program of `scoring/` is given the address, the model and what to ask, `ASKED` as JSON. It prints
what it got by every way of asking that its package has: probabilities, documents with scores, or
documents' vectors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.environments import node_with, python_with
from tests.clients.programs_run import MODEL, output_of
from tests.serving.process import Server, serve

PROGRAMS = Path(__file__).parent / "scoring"
ASKED: dict[str, Any] = {
    "state": "I was charged twice for order 4711 and nobody answers my mails.",
    "angry": "The customer is angry.",
    "team": "Which team should answer?",
    "teams": {"billing": "payments and refunds", "support": "broken devices"},
    "urgency": "How urgent is it?",
    "levels": ["can wait", "this week", "today"],
    "query": "Where is the Colosseum?",
    "documents": ["It is late.", "In Rome.", "Ask the conductor."],
}
PYTHON = {
    "openai_decisions": "openai",
    "langchain_decisions": "langchain-openai",
    "litellm_decisions": "litellm",
    "ollama_systemone": "ollama",
    "typesafe_systemone": "typesafe-sdk",
    "cohere_rerank": "cohere",
    "langchain_rerank": "langchain-cohere",
    "jina_rerank": "llama-index-postprocessor-jinaai-rerank",
    "openai_embeddings": "openai",
    "langchain_embeddings": "langchain-openai",
}
"""Packages by program."""
# What is new enough says that it wants a newer Node than npm would choose it for.
NODE = {
    "openai_decisions": "openai@latest",
    "ai_decide": "ai@latest @ai-sdk/openai@latest @ai-sdk/cohere@latest",
}
NUMBERED = "levels by number"
"""Ends the name of a way of asking by which levels are numbers, whose texts describe them."""
TOLERANCE = 1e-5
"""Requests that are computed beside others sum in another order."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--rerank-template", "qwen3") as server:
        yield server


def decided(server: Server, levels: list[dict[str, str]]) -> dict[str, Any]:
    """The server's answers by its own account."""
    teams = [{"value": name, "description": text} for name, text in ASKED["teams"].items()]
    body = {
        "model": MODEL,
        "input": ASKED["state"],
        "questions": [
            {"type": "predicate", "instructions": ASKED["angry"]},
            {"type": "choice", "instructions": ASKED["team"], "choices": teams},
            {"type": "score", "instructions": ASKED["urgency"], "levels": levels},
        ],
    }
    reply = httpx.post(f"{server.url}/v1/decisions", json=body, timeout=60)
    angry, team, urgency = reply.raise_for_status().json()["answers"]
    return {
        "angry": angry["probability"],
        "team": {each["value"]: each["probability"] for each in team["probabilities"]},
        "urgency": [each["probability"] for each in urgency["probabilities"]],
    }


@pytest.fixture(scope="module")
def wanted(server: Server) -> dict[str, Any]:
    """What is right: answers, answers where levels are numbers, the ranking, and vectors."""
    body = {"model": MODEL, "query": ASKED["query"], "documents": ASKED["documents"]}
    reply = httpx.post(f"{server.url}/v1/rerank", json=body, timeout=60).raise_for_status()
    numbered = [
        {"label": str(level), "description": text} for level, text in enumerate(ASKED["levels"])
    ]
    embedded = server.client.embeddings.create(
        model=MODEL, input=ASKED["documents"], encoding_format="float"
    )
    return {
        "vectors": [each.embedding for each in embedded.data],
        "answers": decided(server, [{"label": text} for text in ASKED["levels"]]),
        NUMBERED: decided(server, numbered),
        "ranking": [[each["index"], each["relevance_score"]] for each in reply.json()["results"]],
    }


def check(output: str, wanted: dict[str, Any]) -> None:
    """Compare what a program's last line reports."""
    found = json.loads(output.splitlines()[-1])
    assert found
    for name, got in found.items():
        if isinstance(got, list):
            assert [index for index, _ in got] == [index for index, _ in wanted["ranking"]]
            scores = [score for _, score in wanted["ranking"]]
            assert [score for _, score in got] == pytest.approx(scores, abs=TOLERANCE), name
            continue
        if "vectors" in got:
            for vector, right in zip(got["vectors"], wanted["vectors"], strict=True):
                assert vector == pytest.approx(right, abs=TOLERANCE), name
            continue
        right = wanted[NUMBERED if name.endswith(NUMBERED) else "answers"]
        assert got.keys() == right.keys()
        for question, answer in got.items():
            assert answer == pytest.approx(right[question], abs=TOLERANCE), (name, question)


@pytest.mark.parametrize("program", PYTHON)
def test_python(program: str, server: Server, wanted: dict[str, Any], tmp_path: Path) -> None:
    python = python_with(*PYTHON[program].split())
    arguments = [f"{server.url}/v1", MODEL, json.dumps(ASKED)]
    check(output_of([python, PROGRAMS / f"{program}.py", *arguments], tmp_path), wanted)


@pytest.mark.parametrize("program", NODE)
def test_node(program: str, server: Server, wanted: dict[str, Any]) -> None:
    folder = node_with(*NODE[program].split())
    # Node looks for packages beside the program.
    copied = shutil.copy(PROGRAMS / f"{program}.mjs", folder)
    arguments = [f"{server.url}/v1", MODEL, json.dumps(ASKED)]
    check(output_of(["node", copied, *arguments], folder), wanted)
