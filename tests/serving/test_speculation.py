"""A server that speculates, beside one that does not: the demo model and its EAGLE head."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from demo import EAGLE_FOLDER
from engine.messages.step_output import Origin
from tests.collector import Collector, attributes, collecting
from tests.engine.origins import draft_counts
from tests.serving.process import Server, refused, serve

PROMPT = "class Stack:\n    def push(self, item):\n"
K = 4


def speculation(**fields: object) -> str:
    config = {"method": "eagle", "model": str(EAGLE_FOLDER), "num_speculative_tokens": K}
    return json.dumps(config | fields)


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def standard(collector: Collector) -> Iterator[Server]:
    flags = ("--speculative-config", speculation(draft_sample_method="gumbel"))
    with serve(*flags, "--otlp-traces-endpoint", collector.url) as server:
        yield server


@pytest.fixture(scope="module")
def coupled() -> Iterator[Server]:
    with serve("--speculative-config", speculation(rejection_sample_method="coupled")) as server:
        yield server


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 40} | fields
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def stream(server: Server, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": PROMPT, "max_tokens": 40, "stream": True} | fields
    chunks = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
    return chunks


SEEDED = [
    {"seed": 1, "temperature": 0.8, "n": 3},
    {"seed": 2, "top_p": 0.9, "top_k": 40, "presence_penalty": 0.5},
    {"seed": 3, "stop": ["return", "\n\n"], "temperature": 1.1},
    {"seed": 4, "stop": ["self"], "include_stop_str_in_output": True, "logprobs": 2},
    {"seed": 5, "min_tokens": 20, "bad_words": ["self"], "repetition_penalty": 1.2},
    {"seed": 6, "stop_token_ids": list(range(300, 400)), "return_token_ids": True},
    {"seed": 7, "echo": True, "logprobs": 1, "max_tokens": 7},
    {"seed": 8, "logit_bias": {"11": 3.0}, "logprob_token_ids": [3, 5], "max_tokens": 11},
]


def without_numbers(choice: dict[str, Any]) -> dict[str, Any]:
    """What is equal to the letter; logprobs differ in their last float32 digits."""
    kept = {name: choice[name] for name in ("index", "text", "finish_reason", "stop_reason")}
    if choice["logprobs"]:
        names = ("tokens", "text_offset", "token_ids", "ranks")
        kept["logprobs"] = {name: choice["logprobs"][name] for name in names}
    return kept


def values_of(choice: dict[str, Any]) -> list[float]:
    """The choice's own logprobs and those of explicit ids."""
    numbers: list[float] = []
    if choice["logprobs"]:
        numbers += [x for x in choice["logprobs"]["token_logprobs"] if x is not None]
    for row in (choice.get("logprob_token_ids") or {"logprobs": []})["logprobs"]:
        numbers += row
    return numbers


@pytest.mark.parametrize("fields", SEEDED)
def test_coupled_replies_are_those_of_plain_decoding(
    plain: Server, coupled: Server, fields: dict[str, Any]
) -> None:
    wanted, got = ask(plain, **fields), ask(coupled, **fields)
    assert [without_numbers(c) for c in got["choices"]] == [
        without_numbers(c) for c in wanted["choices"]
    ]
    assert got["usage"] == wanted["usage"]
    for mine, theirs in zip(got["choices"], wanted["choices"], strict=True):
        np.testing.assert_allclose(values_of(mine), values_of(theirs), atol=1e-4)
    assert "metrics" not in wanted


def test_greedy_replies_are_those_of_plain_decoding(
    plain: Server, standard: Server, coupled: Server
) -> None:
    wanted = ask(plain, temperature=0, max_tokens=80)
    for server in (standard, coupled):
        got = ask(server, temperature=0, max_tokens=80)
        assert got["choices"] == wanted["choices"]
        metrics = got["metrics"]
        assert 1 + metrics["num_accepted_tokens"] / metrics["num_drafts"] > 2.2


@pytest.mark.parametrize("fields", SEEDED[:6])
def test_a_joined_stream_is_the_whole_reply(standard: Server, fields: dict[str, Any]) -> None:
    whole, chunks = ask(standard, **fields), stream(standard, **fields)
    texts = ["" for _ in whole["choices"]]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert [("metrics" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    if "stop" not in fields:  # the server ends those, how far the engine came is chance
        assert chunks[-1]["metrics"] == whole["metrics"]


def test_generated_logprobs_are_those_of_the_prompt_when_echoed(standard: Server) -> None:
    """Accepted, recovered and bonus tokens; the same ids put back as a prompt and scored."""
    fields = {"seed": 9, "temperature": 0.9, "logprobs": 3, "return_token_ids": True}
    [choice] = ask(standard, **fields)["choices"]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    [echoed] = ask(standard, prompt=ids, max_tokens=0, echo=True, logprobs=3)["choices"]
    generated = slice(len(choice["prompt_token_ids"]), len(ids))
    np.testing.assert_allclose(
        choice["logprobs"]["token_logprobs"],
        echoed["logprobs"]["token_logprobs"][generated],
        atol=1e-4,
    )
    assert choice["logprobs"]["ranks"] == echoed["logprobs"]["ranks"][generated]
    assert choice["logprobs"]["top_token_ids"] == echoed["logprobs"]["top_token_ids"][generated]


@pytest.mark.parametrize("fields", [{"seed": 3, "n": 3}, {"temperature": 0}, {"seed": 1, "n": 2}])
def test_origins_are_what_the_metrics_count(
    standard: Server, coupled: Server, fields: dict[str, Any]
) -> None:
    wish = {"return_token_origin": True, "return_token_ids": True, "ignore_eos": True, **fields}
    for server in (standard, coupled):
        reply = ask(server, max_tokens=41, **wish)
        reported = [choice["token_origins"] for choice in reply["choices"]]
        assert [len(each) for each in reported] == [41] * fields.get("n", 1)
        codes = [[Origin[name.upper()] for name in each] for each in reported]
        counts = np.sum([draft_counts(each, K) for each in codes], axis=0).tolist()
        metrics = reply["metrics"]
        assert counts[0] == metrics["num_drafts"]
        shares = [count / counts[0] for count in counts[1:]]
        assert shares == pytest.approx(metrics["acceptance_per_position"])
        if "seed" in fields:  # whose tokens do not depend on the load
            parts: list[list[str]] = [[] for _ in reported]
            for chunk in stream(server, max_tokens=41, **wish):
                for choice in chunk["choices"]:
                    parts[choice["index"]] += choice["token_origins"]
            assert parts == reported


def test_without_a_drafter_every_token_is_drawn(plain: Server) -> None:
    [choice] = ask(plain, max_tokens=3, return_token_origin=True)["choices"]
    assert choice["token_origins"] == ["drawn"] * 3


def test_metrics_count_drafts(standard: Server) -> None:
    before = standard.metrics()
    metrics = ask(standard, seed=1, n=2, max_tokens=64)["metrics"]
    after = standard.metrics()

    def grown(name: str, labels: str = "") -> float:
        key = next(k for k in after if k.startswith(f"tailrace_spec_decode_{name}") and labels in k)
        return after[key] - before.get(key, 0.0)

    assert grown("num_drafts_total") == metrics["num_drafts"] > 0
    assert grown("num_draft_tokens_total") == metrics["num_draft_tokens"]
    assert grown("num_accepted_tokens_total") == metrics["num_accepted_tokens"]
    for place, share in enumerate(metrics["acceptance_per_position"]):
        kept = grown("num_accepted_tokens_per_pos_total", f'position="{place}"')
        assert kept == pytest.approx(share * metrics["num_drafts"])


def test_a_trace_tells_times_of_the_engine_and_drafts(
    standard: Server, collector: Collector
) -> None:
    trace, began = "4bf92f3577b34da6a3ce929d0e0e4736", time.time_ns()
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 2, "n": 2}
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    reply = httpx.post(f"{standard.url}/v1/completions", json=body, headers=headers, timeout=60)
    metrics = reply.json()["metrics"]

    def ours() -> list[Any]:
        return [span for span in collector.spans if span.trace_id.hex() == trace]

    deadline = time.monotonic() + 60  # they leave every five seconds
    while len(ours()) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    ended = time.time_ns()  # a request ends after its reply's last byte, which is here before
    stamps = {span.name: (span.start_time_unix_nano, span.end_time_unix_nano) for span in ours()}
    assert set(stamps) == {"text_completion tailrace-demo", "queue", "prefill", "decode"}
    whole = stamps["text_completion tailrace-demo"]
    assert began <= whole[0] <= stamps["queue"][0] <= stamps["queue"][1]
    assert stamps["queue"][1] == stamps["prefill"][0] < stamps["prefill"][1]
    assert stamps["prefill"][1] == stamps["decode"][0] < stamps["decode"][1] == whole[1] <= ended
    reported = next(attributes(span) for span in ours() if span.name.startswith("text"))
    speculation = {name: reported[f"tailrace.speculation.{name}"] for name in metrics}
    assert speculation == metrics


def test_what_cannot_be_is_refused_in_one_line() -> None:
    status, words = refused("--device", "cpu", "--speculative-config", speculation(model="/none"))
    assert status != 0
    assert "/none" in words
    assert "Traceback" not in words
