"""Two fronts over one engine: they answer as one, and each may be lost without the others."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import engine.loop
import engine.parent
from tests.serving.process import Server, connection_to, connections, serve

PROMPT = "def fibonacci(n):\n"
NUM_ROWS, MAX_WAITING = 4, 2
PAUSE_S = max(engine.loop.SILENCE_S, engine.parent.SILENCE_S) + 4.0
"""Longer than anybody may be silent."""
LONG = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = ("--max-num-seqs", str(NUM_ROWS), "--max-waiting-requests", str(MAX_WAITING))
    with serve("--api-server-count", "2", *limits) as server:
        yield server


@contextlib.contextmanager
def streaming(client: httpx.Client, **fields: Any) -> Iterator[Iterator[str]]:
    """The lines of a long stream that has begun."""
    with client.stream("POST", "/v1/completions", json={**LONG, **fields}) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        next(lines)
        yield lines


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def gauge(server: Server, name: str) -> float:
    """The only sample of a gauge of the engine."""
    [value] = [v for key, v in server.metrics().items() if key.startswith(f"tailrace_{name}{{")]
    return value


def test_a_reply_does_not_depend_on_the_front(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 5, "n": 2, "logprobs": 2, "echo": True}
    replies, models = [], []
    with connections(server) as clients:
        for client in clients:
            reply = client.post("/v1/completions", json=body).json()
            replies.append({key: reply[key] for key in reply.keys() - {"id", "created"}})
            models.append(client.get("/v1/models").json())
    assert len(replies) == 2
    assert replies[0] == replies[1]
    assert models[0] == models[1]


def page_of(client: httpx.Client) -> dict[str, str]:
    lines = client.get("/metrics").text.splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")


def counted(page: dict[str, str]) -> dict[str, str]:
    """Counts of choices and tokens, by the fronts and by the engine."""
    names = ("tailrace_request_", "tailrace_gen", "tailrace_engine_steps")
    return {name: value for name, value in page.items() if name.startswith(names)}


def test_metrics_are_those_of_all_fronts_whoever_is_asked(server: Server) -> None:
    with connections(server) as clients:
        for client in clients:
            for _ in range(3):
                client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        # What the engine counts is sent to the fronts one after another.
        eventually(lambda: counted(page_of(clients[0])) == counted(page_of(clients[1])))
        pages = [page_of(client) for client in clients]
    assert len(counted(pages[0])) > 20
    received = [v for name, v in pages[0].items() if name.startswith("tailrace_requests_received")]
    assert len(received) == 1
    assert float(received[0]) >= 6
    for page in pages:
        for name in ("tailrace_engine_up", "tailrace_num_requests_running"):
            assert len([key for key in page if key.startswith(f"{name}{{")]) == 1
        assert {f'process_cpu_seconds_total{{front="{i}"}}' for i in range(2)} <= page.keys()


def test_admission_is_one(server: Server) -> None:
    with connections(server) as clients, contextlib.ExitStack() as stack:
        for _ in range(NUM_ROWS):
            more = stack.enter_context(httpx.Client(base_url=server.url, timeout=120))
            stack.enter_context(streaming(more))
        # One body with as many prompts as may wait, and one prompt more.
        prompts = [PROMPT] * (MAX_WAITING + 1)
        for client in clients:
            reply = client.post("/v1/completions", json={"prompt": prompts, "max_tokens": 1})
            assert reply.status_code == 429
            assert f"with this request {MAX_WAITING + 1}," in reply.text
    eventually(lambda: gauge(server, "num_requests_running") == 0)


@contextlib.contextmanager
def logged(path: Path, *flags: str) -> Iterator[tuple[Server, httpx.Client, psutil.Process]]:
    """A server whose log lines go to a file, a client and its first process."""
    with (
        path.open("w") as log,
        serve(*flags, log=log.fileno()) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        yield server, client, psutil.Process(server.process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_pause_of_all_processes_loses_nothing(tmp_path: Path, count: str) -> None:
    """As `docker pause` does it; the log says that it was so, and blames nobody."""
    log = tmp_path / "log"
    with logged(log, "--api-server-count", count, "--step-timeout", "10") as (_, client, main):
        with streaming(client) as lines:
            everybody = [main, *main.children(recursive=True)]
            for process in everybody:
                process.suspend()
            time.sleep(PAUSE_S)
            for process in reversed(everybody):
                process.resume()
            assert client.get("/health").status_code == 200
            assert list(lines)[-2] == "data: [DONE]"
        time.sleep(6.0)  # no less than it would take to end
        assert client.get("/health").status_code == 200
    words = log.read_text()
    assert "held up for" in words
    assert "lost" not in words
    assert "aborted" not in words


@pytest.mark.slow
def test_a_stopped_supervisor_does_not_blame_the_engine(tmp_path: Path) -> None:
    with logged(tmp_path / "log", "--api-server-count", "2") as (_, client, main):
        main.suspend()
        time.sleep(PAUSE_S)
        main.resume()
        for _ in range(20):
            assert client.get("/health").status_code == 200
            time.sleep(0.1)
    assert "lost" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_killed_front_is_replaced_and_the_others_go_on() -> None:
    with serve("--api-server-count", "2") as server, connections(server) as clients:
        lost, kept = server.fronts
        before = server.metrics()
        with streaming(clients[0], n=3) as cut, streaming(clients[1]) as whole:
            eventually(lambda: gauge(server, "num_requests_running") == 4)
            lost.kill()
            with pytest.raises(httpx.TransportError):
                list(cut)
            eventually(lambda: gauge(server, "num_requests_running") <= 1, 2)
            assert list(whole)[-2] == "data: [DONE]", "the other front's stream goes on to its end"
            eventually(lambda: gauge(server, "num_requests_running") == 0, 5)
        eventually(lambda: len(server.fronts) == 2)
        assert kept.is_running()
        for front in server.fronts:
            eventually(lambda front=front: _takes_connections(server, front))  # type: ignore[misc]
        after = server.metrics()
        name = next(name for name in before if name.startswith("tailrace_requests_received"))
        assert after[name] == before[name] + 2, "what the dead front had counted stays"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


def _takes_connections(server: Server, front: psutil.Process) -> bool:
    try:
        connection_to(server, front).close()
    except AssertionError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_front_that_is_stopped_alone_blames_nobody(tmp_path: Path, count: str) -> None:
    """It loses its requests, whose rows others get; each process logs what it was, and no more."""
    log = tmp_path / "log"
    with logged(log, "--api-server-count", count) as (server, _, main):
        stopped = server.fronts[0] if server.fronts else main
        with (
            contextlib.closing(connection_to(server, stopped)) as client,
            streaming(client, n=128) as lines,
        ):
            stopped.suspend()
            time.sleep(PAUSE_S)
            stopped.resume()
            assert '"code":"aborted"' in "".join(lines), "its stream gets an error, and ends"
            for _ in range(60):  # longer than a server takes to end
                assert client.get("/health").status_code == 200
                time.sleep(0.1)
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        assert gauge(server, "num_requests_running") == 0
    words = log.read_text()
    assert words.count("a frontend was silent for 30 s: its requests are aborted") == 1
    assert "this process was stopped or held up for 3" in words
    assert "lost" not in words
    assert "engine is back" not in words


@pytest.mark.slow
def test_a_stopped_front_loses_its_requests_and_the_others_go_on() -> None:
    with serve("--api-server-count", "2") as server, connections(server) as clients:
        stopped = server.fronts[0]
        with streaming(clients[0], n=64) as held:  # which takes longer than anyone may be silent
            eventually(lambda: gauge(server, "num_requests_running") == 64)
            stopped.suspend()
            try:
                # Whoever is asked meanwhile is asked by way of the other.
                eventually(lambda: gauge(server, "num_requests_running") == 0)
                with streaming(clients[1], max_tokens=50) as whole:
                    assert list(whole)[-2] == "data: [DONE]"
            finally:
                stopped.resume()
            assert '"error"' in "".join(held), "its stream gets an error, and ends"
        assert clients[0].post("/v1/completions", json={"prompt": "x"}).status_code == 200


@pytest.mark.slow
def test_a_killed_engine_ends_all_fronts_with_their_server() -> None:
    with serve("--api-server-count", "2") as server, connections(server) as clients:
        fronts = server.fronts
        with streaming(clients[0]) as first, streaming(clients[1]) as second:
            server.engine.kill()
            assert all('"code":"engine_dead"' in "".join(lines) for lines in (first, second))
        for client in clients:
            assert client.get("/health").status_code == 503
        assert server.process.wait(timeout=60) == 1
        assert not any(front.is_running() for front in fronts)


@pytest.mark.slow
def test_a_killed_supervisor_takes_all_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve("--api-server-count", "2") as server:
        processes = [*server.fronts, server.engine]
        server.process.kill()
        psutil.wait_procs(processes, timeout=60)
        assert not any(process.is_running() for process in processes)
    assert not list(tmp_path.glob("tailrace-*"))


@pytest.mark.slow
def test_a_drain_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first front is empty at once, and refuses like the other until that is empty too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve("--api-server-count", "2") as server, connections(server) as clients:
        with streaming(clients[1], max_tokens=1000) as lines:
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: clients[0].get("/ready").status_code == 503)
            late = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60)
            assert late.status_code == 503
            assert list(lines)[-2] == "data: [DONE]"
        assert server.process.wait(timeout=60) == 0
    assert not list(tmp_path.glob("tailrace-*"))
