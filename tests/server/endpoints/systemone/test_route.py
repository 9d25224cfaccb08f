"""`/v1/systemone` and its variants over HTTP on a fake engine: replies, and errors as details."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from server.endpoints.systemone.reply_schema import DetailReply, PermuteReply, SystemOneReply
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, Site, in_process, nested

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
QUESTIONS: dict[str, Any] = {
    "spam": {"type": "noul", "instructions": "Is it spam?", "criteria": {"true": "it sells"}},
    "team": {"type": "choice", "criteria": {"billing": "payments", "sales": None}},
    "mood": {"type": "score", "criteria": ["bad", "fine", "good"]},
}


@pytest.fixture
async def chat() -> AsyncIterator[Site]:
    async with in_process(FakeEngine(max_model_len=2048), chat_template=TEMPLATE) as site:
        yield site


async def send(site: Site, path: str = "", **changes: Any) -> httpx.Response:
    body = {"model": MODEL, "state": "It is late.", "questions": QUESTIONS} | changes
    return await site.client.post(f"/v1/systemone{path}", json=body)


def prompts_of(site: Site) -> list[str]:
    asked = site.engine.scored[-1]
    query, items, start = bytes(asked.query_token_ids.tolist()), [], 0
    for length in asked.item_lens.tolist():
        items.append(query + bytes(asked.item_token_ids[start : start + length].tolist()))
        start += length
    return [item.decode() for item in items]


async def test_answers_by_name(chat: Site) -> None:
    reply = (await send(chat)).json()
    SystemOneReply.model_validate(reply)
    spam, team, mood = (reply["answers"][name] for name in QUESTIONS)
    assert spam["noul"] == spam["probabilities"]["yes"]
    assert sum(spam["probabilities"].values()) == pytest.approx(1, abs=1e-12)
    assert team["choice"] in team["probabilities"]
    assert team["probabilities"].keys() == {"billing", "sales"}
    assert mood["legend"] == {"0": "bad", "1": "fine", "2": "good"}
    expected = sum(int(level) * p for level, p in mood["probabilities"].items())
    assert mood["score"] == pytest.approx(expected)
    assert all(
        each.keys() == {"label_mass", "argmax_is_label"} for each in reply["diagnostics"].values()
    )
    assert reply["usage"]["output_tokens"] == 0


async def test_prompts(chat: Site) -> None:
    await send(chat, instructions="Be fair.", state={"a": [1, "é"]})
    spam, team, mood = prompts_of(chat)
    state = '<system>Be fair.\n<user>{"a":[1,"é"]}\n\nAnswer with '
    assert spam == (
        f"{state}yes or no only.\nyes - it sells\nno\nQuestion: Is it spam?\n<assistant>"
    )
    assert "only.\nA: billing - payments\nB: sales\nQuestion: Which one is it?\n" in team
    assert "only.\n0: bad\n1: fine\n2: good\nQuestion: Which level is it?\n" in mood
    assert team.startswith(state)
    assert mood.startswith(state)


async def test_both_endpoints_ask_in_the_same_words(chat: Site) -> None:
    await send(
        chat,
        questions={
            "q": {"type": "choice", "instructions": "Which?", "criteria": {"a": "x", "b": None}}
        },
    )
    own = prompts_of(chat)
    choices = [{"value": "a", "description": "x"}, {"value": "b"}]
    questions = [{"type": "choice", "instructions": "Which?", "choices": choices}]
    body = {"model": MODEL, "input": "It is late.", "questions": questions}
    await chat.client.post("/v1/decisions", json=body)
    assert prompts_of(chat) == own


async def test_instructions_may_be_json(chat: Site) -> None:
    question = {"type": "noul", "instructions": {"ask": ["Is it so?"]}}
    unsaid = {"type": "choice", "instructions": None, "criteria": {"x": None, "y": None}}
    reply = await send(chat, questions={"a": question, "b": unsaid})
    assert reply.status_code == 200, reply.text
    items = bytes(chat.engine.scored[-1].item_token_ids.tolist())
    assert b'Question: {"ask":["Is it so?"]}' in items
    assert b"Question: Which one is it?" in items


async def test_permute(chat: Site) -> None:
    body = {"model": MODEL, "state": "It is late.", "questions": QUESTIONS}
    reply = await chat.client.post(
        "/v1/systemone/permute", json={"request": body, "question": "mood", "n_perm": 4, "seed": 1}
    )
    found = reply.json()
    PermuteReply.model_validate(found)
    assert len(found["runs"]) == 4
    assert all(sorted(run["order"]) == ["bad", "fine", "good"] for run in found["runs"])
    assert found["argmax_stable"] == (len({run["choice"] for run in found["runs"]}) == 1)
    highest = [max(run["probabilities"][name] for run in found["runs"]) for name in ("bad", "fine")]
    lowest = [min(run["probabilities"][name] for run in found["runs"]) for name in ("bad", "fine")]
    assert found["spread"] >= max(h - low for h, low in zip(highest, lowest, strict=True)) - 1e-12
    wrong = await chat.client.post("/v1/systemone/permute", json={"request": body, "question": "x"})
    assert wrong.status_code == 422
    assert wrong.json()["detail"][0]["loc"] == ["body", "question"]


async def test_the_seed_chooses_the_orders(chat: Site) -> None:
    body = {"model": MODEL, "state": "It is late.", "questions": QUESTIONS}

    async def orders(seed: int) -> list[list[str]]:
        asked = {"request": body, "question": "mood", "n_perm": 4, "seed": seed}
        reply = await chat.client.post("/v1/systemone/permute", json=asked)
        return [run["order"] for run in reply.json()["runs"]]

    drawn = [await orders(seed) for seed in range(4)]
    assert drawn == [await orders(seed) for seed in range(4)]
    assert len({str(each) for each in drawn}) > 1, "four seeds do not have the same orders"


async def test_separate_is_the_same(chat: Site) -> None:
    body = {"model": MODEL, "state": "It is late.", "questions": QUESTIONS}
    reply = await chat.client.post("/v1/systemone/separate", json={"request": body})
    assert reply.json()["answers"] == (await send(chat)).json()["answers"]


def one(**question: Any) -> dict[str, Any]:
    """A body's questions: one of the name "a"."""
    return {"questions": {"a": question}}


REFUSALS: list[tuple[dict[str, Any], list[str | int], str]] = [
    ({"questions": {}}, ["questions"], "at least 1"),
    (one(type="noul"), ["questions", "a"], "needs instructions"),
    (one(type="noul", criteria={"maybe": "x"}), ["questions", "a"], "true"),
    (one(type="choice", criteria={"x": None}), ["questions", "a"], "2 to 255, got 1"),
    (one(type="score", criteria=["x"] * 11), ["questions", "a"], "2 to 10, got 11"),
    (one(type="score", criteria={"x": "y"}), ["questions", "a"], "a list of levels"),
    (one(type="box"), ["questions", "a"], "noul, choice, score"),
    (one(type="score", criteria=["x"]), ["questions", "a"], "2 to 10, got 1"),
    (one(instructions="x"), ["questions", "a"], "type"),
    (one(type="noul", instructions=5), ["questions", "a", "instructions"], "got 5"),
    (one(type="noul", instructions=nested(40)), ["questions", "a", "instructions"], "32 levels"),
    ({"permute": 65}, ["permute"], "at most 64"),
    ({"assets": {"x": {"type": "image"}}}, ["assets"], "images"),
    ({"state": 5}, ["state"], "must be a text, an object or a list, got 5"),
    ({"state": nested(40)}, ["state"], "at most 32 levels"),
    ({"state": " "}, ["state"], "must not be empty"),
    ({"state": "x" * 3000}, ["state"], "must fit into the context of 2048"),
    ({"state": ["x" * 90_000]}, ["state"], "with the longest label, got at least "),
    (
        one(type="choice", criteria=dict.fromkeys(map(str, range(256)), 1)),
        ["questions", "a", "criteria"],
        "at most 255 options or levels, got 256",
    ),
    (one(type="choice", criteria=5), ["questions", "a", "criteria"], "must be an object, got 5"),
    (one(type="choice", criteria={"x": 5}), ["questions", "a", "criteria", "x"], "got 5"),
    (one(type="score", criteria=["x", 5]), ["questions", "a", "criteria", 1], "got 5"),
    (one(type="noul", instructions="x" * 90_000), ["questions", "a"], "got at least "),
    ({"temperature": 1}, ["temperature"], "unknown field"),
]


@pytest.mark.parametrize(("changes", "loc", "words"), REFUSALS)
async def test_refused(
    chat: Site, changes: dict[str, Any], loc: list[str | int], words: str
) -> None:
    reply = await send(chat, **changes)
    assert reply.status_code == 422, reply.text
    DetailReply.model_validate(reply.json())
    (detail,) = reply.json()["detail"]
    assert detail["loc"] == ["body", *loc]
    assert words in detail["msg"]


async def test_other_errors_have_the_same_shape(chat: Site) -> None:
    reply = await send(chat, model="other")
    assert (reply.status_code, reply.json()["detail"][0]["type"]) == (404, "model_not_found")
    async with in_process(FakeEngine(), api_keys=("k",)) as locked:
        assert (await send(locked)).json()["detail"][0]["msg"]
