"""A fleet on Ray Serve: 200 mixed requests, a killed replica, a rolling restart, scaling, hits.

Minutes long: each of up to four engines imports torch on its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo import MODEL_FOLDER
from tests.fleet.load import MODEL, loading, mixed, send_all
from tests.fleet.process import FLAGS, Fleet, fleet, until
from tests.serving.lm_eval_tasks import evaluate, make_tasks
from tests.serving.process import Server, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray: the extra `ray` has it"),
]
GROUPS, GROUP_SIZE, SHARED_WORDS = 12, 8, 120


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet("--replicas", "3", num_replicas=3) as made:
        yield made


@pytest.fixture(scope="module")
def one() -> Iterator[Server]:
    with serve(*FLAGS[2:], "--api-server-count", "1") as made:
        yield made


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("tasks"))


def outcomes_of(server: Server) -> dict[str, float]:
    """How generation requests ended so far, by the server's own count."""
    prefix, found = "tailrace_request_outcomes_total", {}
    for name, value in server.metrics().items():
        if name.startswith(prefix):
            found[name.split('outcome="')[1].split('"')[0]] = value
    found["received"] = sum(
        value
        for name, value in server.metrics().items()
        if name.startswith("tailrace_requests_received_total")
    )
    return found


def test_200_mixed_requests(three: Fleet) -> None:
    before = outcomes_of(three)
    outcomes = asyncio.run(send_all(three.url, mixed(200), concurrency=24))
    assert [each for each in outcomes if (each.status, each.errors) != (200, ())] == []
    after = outcomes_of(three)
    assert after["received"] - before["received"] == 200
    assert after["success"] - before["success"] == 200


def test_the_openai_client_gets_what_one_server_gives(three: Fleet, one: Server) -> None:
    def ask(server: Server) -> list[Any]:
        client = server.client
        found: list[Any] = []
        for i in range(8):
            shared: dict[str, Any] = {"model": MODEL, "seed": i, "max_tokens": 24}
            prompt = f"class Test{i}(unittest.TestCase):\n    def "
            reported = client.completions.create(prompt=prompt, n=2, logprobs=1, **shared)
            found.append([choice.text for choice in reported.choices])
            turns: Any = [{"role": "user", "content": prompt}]
            chat = client.chat.completions.create(messages=turns, temperature=0.5, **shared)
            found.append(chat.choices[0].message.content)
            stream = client.completions.create(prompt=prompt, stream=True, **shared)
            found.append("".join(chunk.choices[0].text for chunk in stream))
        return found

    assert ask(three) == ask(one)


def hit_rate(server: Server, seed: int) -> float:
    """The share of prompt tokens of grouped prompts that were found computed."""
    rng = random.Random(seed)
    groups = [
        " ".join(f"w{rng.randrange(999)}" for _ in range(SHARED_WORDS)) for _ in range(GROUPS)
    ]
    prompts = [f"{text} question {i}" for i in range(GROUP_SIZE) for text in groups]
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 4}

    def counts() -> list[float]:
        names = ("tailrace_prefix_cache_hits_total", "tailrace_prefix_cache_queries_total")
        samples = server.metrics()
        return [sum(v for k, v in samples.items() if k.startswith(name)) for name in names]

    hits, queries = counts()
    asked = [("/v1/completions", body | {"prompt": prompt}) for prompt in prompts]
    outcomes = asyncio.run(send_all(server.url, asked, concurrency=4))
    assert all(each.status == 200 for each in outcomes)
    until(lambda: counts()[1] > queries, 10)
    threading.Event().wait(3)  # the latest reports of all replicas
    now_hits, now_queries = counts()
    return (now_hits - hits) / (now_queries - queries)


def test_grouped_prompts_hit_the_cache_as_in_one_replica(three: Fleet, one: Server) -> None:
    alone, together = hit_rate(one, 7), hit_rate(three, 7)
    print(f"hit rate: one replica {alone:.3f}, three {together:.3f}")
    assert alone > 0.5, "there is something to find"
    assert together > 0.9 * alone


@pytest.mark.parametrize("kind", ["replicas", "engines"])
def test_a_killed_replica_costs_only_the_streams_it_had_begun(three: Fleet, kind: str) -> None:
    """So does one whose engine alone is killed: it ends itself."""
    before = outcomes_of(three)
    victim = next(iter(getattr(three, kind).values()))

    def kill(num_done: int) -> None:
        if num_done == 60:
            victim.kill()

    outcomes = asyncio.run(send_all(three.url, mixed(200, seed=1), 24, kill))
    cut = [each for each in outcomes if each.errors]
    print(f"{len(cut)} streams were cut: {sorted({code for each in cut for code in each.errors})}")
    assert [each for each in outcomes if each.status != 200 or not each.ended] == []
    assert all(len(each.errors) == 1 and each.num_bytes for each in cut)
    assert len(cut) < 24, "no more than were open"
    after = outcomes_of(three)
    counted = {name: after[name] - before[name] for name in after}
    assert counted["received"] == 200
    assert (counted["success"], counted["server_error"]) == (200 - len(cut), len(cut))
    until(lambda: three.num_rows == 24)


@pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm_eval: the extra `slow`")
def test_lm_eval_gets_what_one_server_gives(
    three: Fleet, one: Server, tasks: Path, tmp_path: Path
) -> None:
    def results(server: Server) -> dict[str, Any]:
        arguments = f"model={MODEL},base_url={server.url}/v1/completions,num_concurrent=4"
        arguments += f",tokenizer={MODEL_FOLDER},tokenizer_backend=huggingface,max_length=2048"
        out = tmp_path / str(server.process.pid)
        return evaluate(tasks, out, "local-completions", arguments)

    alone, together = results(one), results(three)
    assert together["local_generate"] == alone["local_generate"]
    for task in ("local_choice", "local_rolling"):
        assert together[task].keys() == alone[task].keys() != set()
        for doc, answers in alone[task].items():
            for ours, theirs in zip(together[task][doc], answers, strict=True):
                assert _number(ours) == pytest.approx(_number(theirs), abs=1e-3)


def _number(answer: Any) -> float:
    """The log likelihood of an answer, alone or before whether it is greedy."""
    return float(answer if isinstance(answer, str | float) else answer[0])


def test_a_rolling_restart_loses_nothing(three: Fleet) -> None:
    old = set(three.engines)
    with loading(three.url) as found:
        three.process.send_signal(signal.SIGHUP)
        until(lambda: len(now := set(three.engines)) == 3 and not now & old)
    print(f"{len(found)} requests during a rolling restart")
    assert len(found) >= 24
    assert [e for e in found if e.status != 200 or e.errors or not e.ended] == []


def test_replicas_come_with_the_load_and_go_with_it() -> None:
    flags = ("--replicas", "1", "--max-replicas", "3", "--upscale-delay", "2")
    with fleet(*flags, "--downscale-delay", "5") as made:
        done, found = threading.Event(), []

        def load() -> None:
            seed = 500
            while not done.is_set():
                seed += 1
                found.extend(asyncio.run(send_all(made.url, mixed(96, seed), concurrency=48)))

        loader = threading.Thread(target=load)
        loader.start()
        try:
            until(lambda: len(made.engines) == 3)
        finally:
            done.set()
            loader.join()
        until(lambda: len(made.engines) == 1)
        found += asyncio.run(send_all(made.url, mixed(12, 9), concurrency=4))
        print(f"{len(found)} requests while 1 became 3 and 1 again")
        assert [e for e in found if e.status != 200 or e.errors or not e.ended] == []


def test_a_fleet_that_ends_lets_open_requests_end() -> None:
    """New ones are refused meanwhile, as one server refuses them."""
    body = {"model": MODEL, "prompt": "def f(", "max_tokens": 1000, "ignore_eos": True}
    with fleet() as made, httpx.Client(base_url=made.url, timeout=300) as client:
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
            lines = reply.iter_lines()
            next(lines)
            made.process.send_signal(signal.SIGTERM)
            until(lambda: made.get("/ready").status_code == 503, 10)
            refused = httpx.post(made.url + "/v1/completions", json=body)
            assert refused.status_code == 503
            assert "shutting down" in refused.json()["error"]["message"]
            events = [line for line in lines if line]
        assert len(events) > 100, "there was time to cut it"
        assert events[-1] == "data: [DONE]"
        assert not any('"error"' in event for event in events)
        assert made.process.wait(60) == 0
