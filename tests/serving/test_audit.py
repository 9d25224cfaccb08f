"""`tailrace audit` of a real server's replies: honest ones pass, each kind of other one fails."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from server.cli import main
from tests.serving.process import Server, serve

Json = dict[str, Any]
COMPLETION = {"prompt": ["def main(", "import"], "max_tokens": 24, "seed": 5, "n": 2, "logprobs": 0}
FILTERED = {
    **{"prompt": "class A:", "max_tokens": 24, "seed": -7, "temperature": 1.3, "top_k": 50},
    **{"top_p": 0.95, "min_p": 0.01, "stream": True, "logprobs": 1, "stream_interval": 1},
}
EDITED = {
    **{"prompt": "import os\n", "max_tokens": 24, "seed": 6, "repetition_penalty": 1.2},
    **{"presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": {"11": 3}},
    **{"bad_words": ["self"], "min_tokens": 10},
}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "seed": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--max-logprobs", "-1") as running:
        yield running


@pytest.fixture(scope="module")
def pairs(server: Server) -> list[Json]:
    """Requests and replies, joined or as the stream came."""
    chats = [{**CHAT, "temperature": 2.0, "stream": stream} for stream in (False, True)]
    return [
        *(asked(server, "completions", body) for body in (COMPLETION, FILTERED, EDITED)),
        *(asked(server, "chat/completions", body) for body in chats),
    ]


CHAT_SHAPES: tuple[Json, ...] = (
    {},
    {"stream": True},
    {"logprobs_format": "packed"},
    {"logprobs_format": "packed", "stream": True},
)
SHAPES: tuple[Json, ...] = (
    *CHAT_SHAPES,
    {"logprob_token_ids": [3, 17]},
    {"logprob_token_ids": [3, 17], "stream": True, "logprobs_format": "packed"},
    {"echo": True},
    {"echo": True, "logprobs_format": "packed"},
    {"stop": ["r", "e"]},
    {"stop": ["r", "e"], "stream": True},
    {"ignore_eos": True, "return_tokens_as_token_ids": True},
)


def test_logprobs_are_compared_in_every_form(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One value off by 0.01 in the top lists is caught, wherever a reply has them."""
    completions = [{**FILTERED, "stream": False, "logprobs": 3, **shape} for shape in SHAPES]
    chats = [{**CHAT, "logprobs": True, "top_logprobs": 2, **shape} for shape in CHAT_SHAPES]
    made = [
        *(asked(server, "completions", body) for body in completions),
        *(asked(server, "chat/completions", body) for body in chats),
    ]
    status, report = audit(made, tmp_path, capsys)
    assert status == 0, report
    assert all(0 < choice["logprob_gap"] < 1e-4 for choice in report["choices"])
    changed = copy.deepcopy(made[0])
    tops = changed["response"]["choices"][0]["logprobs"]["top_logprobs"][2]
    tops[min(tops, key=tops.get)] += 0.01
    status, report = audit([changed], tmp_path, capsys)
    assert (status, report["choices"][0]["unexplained"]) == (1, 0)


def asked(server: Server, path: str, body: Json) -> Json:
    """A request that asks for ids, and its reply, as text where it is a stream."""
    whole = {**body, "return_token_ids": True}
    reply = httpx.post(f"{server.url}/v1/{path}", json=whole, timeout=60)
    assert reply.status_code == 200, reply.text
    return {"request": whole, "response": reply.text if body.get("stream") else reply.json()}


def audit(
    pairs: list[Json], tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, Json]:
    path = tmp_path / "replies.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, pairs)))
    status = main(["audit", str(path), "--json", "--device", "cpu", *flags])
    return status, orjson.loads(capsys.readouterr().out)


def test_honest_replies_pass_here_and_by_the_server(
    server: Server, pairs: list[Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ((), ("--base-url", server.url)):
        status, report = audit(pairs, tmp_path, capsys, *flags)
        assert status == 0, report
        assert [choice["tokens"] for choice in report["choices"]] == [24] * 8
        # Chunks of a prompt and single tokens differ by some 1e-6 in float32.
        assert all(choice["noise"] < 1e-4 for choice in report["choices"])
        assert sum(choice["log10_odds"] for choice in report["choices"]) < -60
        assert "drew all 192 tokens of 8 choices" in report["conclusion"]


def test_replies_of_greedy_drafts_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--speculative-config", '{"method": "eagle", "num_speculative_tokens": 3}'
    body = {**EDITED, "return_token_ids": True}
    with serve(*flags) as drafting:
        response = httpx.post(f"{drafting.url}/v1/completions", json=body, timeout=60).json()
    assert response["metrics"]["num_accepted_tokens"] > 0
    pair = {"request": body, "response": response}
    status, report = audit([pair], tmp_path, capsys, *flags)
    assert status == 0, report
    sampled = flags[1].replace("}", ', "draft_sample_method": "gumbel"}')
    status, report = audit([pair], tmp_path, capsys, flags[0], sampled)
    assert status == 3, report


def swapped(pair: Json) -> Json:
    changed = copy.deepcopy(pair)
    token_ids = changed["response"]["choices"][0]["token_ids"]
    token_ids[12] = 17 if token_ids[12] != 17 else 18
    return changed


def with_field(pair: Json, **fields: Any) -> Json:
    return {**pair, "request": {**pair["request"], **fields}}


@pytest.mark.parametrize("kind", ["swapped", "seed", "temperature", "choices", "weights"])
def test_other_replies_are_caught(
    kind: str, pairs: list[Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = with_field(pairs[0], logprobs=None)
    changed = copy.deepcopy(honest)
    flags: tuple[str, ...] = ()
    if kind == "swapped":
        changed = swapped(honest)
    elif kind == "seed":
        changed = with_field(honest, seed=6)
    elif kind == "temperature":
        changed = with_field(honest, temperature=0.8)
    elif kind == "choices":
        choices = changed["response"]["choices"]
        choices[0]["token_ids"], choices[1]["token_ids"] = (
            choices[1]["token_ids"],
            choices[0]["token_ids"],
        )
    else:
        flags = ("--load-format", "dummy")
    status, report = audit([changed], tmp_path, capsys, *flags)
    assert status == 1
    first = report["choices"][0]
    assert first["unexplained"] >= 1
    assert "not drawn by this model and seed" in first["words"]


def test_logprobs_of_other_weights_are_caught_even_where_tokens_fit(
    pairs: list[Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(pairs[0])
    values = changed["response"]["choices"][1]["logprobs"]["token_logprobs"]
    values[3] -= 0.01
    status, report = audit([changed], tmp_path, capsys)
    assert status == 1
    assert report["choices"][1]["unexplained"] == 0
    assert "not of these weights" in report["choices"][1]["words"]
