"""The process: where it listens, how it ends, and with which status."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from engine.config import ConfigError
from server.command import serve as serve_module
from server.command.listen import bind
from server.command.settings import load_settings
from tests.collector import collecting

ROOT = Path(__file__).parents[3]
_RUNNING = re.compile(r"^tailrace_num_requests_running{.*} [1-9]", re.MULTILINE)
SLOWLY = {"FAKE_STEP_S": "0.2"}
"""A request goes on while a test looks at the server; `pull` "hurry" to let it end."""


class Process:
    """A server process over the fake engine."""

    def __init__(self, *arguments: str, shell: str = "", **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.popen = subprocess.Popen(
            [
                *("sh", "-c", f'{shell}exec "$0" "$@"'),
                *(sys.executable, "-m", "tests.server.command.fake_serve"),
                *("serve", "--port", str(self.port), "--api-server-count", "1", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def wait_ready(self) -> None:
        for _ in range(1200):
            with suppress(httpx.TransportError):
                if self.client.get("/ready").status_code == 200:
                    return
            assert self.popen.poll() is None, self.popen.stderr and self.popen.stderr.read()
            time.sleep(0.05)
        raise AssertionError("never ready")

    def wait_running(self) -> None:
        """Wait until the engine works at a request."""
        for _ in range(3000):
            if _RUNNING.search(self.client.get("/metrics").text):
                return
            time.sleep(0.01)
        raise AssertionError("never running")

    def drain(self) -> None:
        """Send a SIGTERM and wait until it was heard."""
        self.popen.send_signal(signal.SIGTERM)
        for _ in range(3000):
            with suppress(httpx.TransportError):  # connections that are idle are closed
                if self.client.get("/ready").status_code == 503:
                    return
            time.sleep(0.01)
        raise AssertionError("never draining")

    def pull(self, lever: str) -> None:
        """Pull a lever of `fake_serve`."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{lever}\n")
        self.popen.stdin.flush()

    def end(self, seconds: float = 60) -> int:
        return self.popen.wait(seconds)

    def close(self) -> None:
        self.client.close()
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate()


Starter = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Starter]:
    started: list[Process] = []

    def starter(*arguments: str, shell: str = "", **environment: str) -> Process:
        started.append(Process(*arguments, shell=shell, **environment))
        return started[-1]

    yield starter
    for process in started:
        process.close()


def in_background(
    process: Process, max_tokens: int
) -> tuple[threading.Thread, list[httpx.Response]]:
    """Send a request, and wait until the engine works at it."""
    replies: list[httpx.Response] = []

    def post() -> None:
        body = {"prompt": "a", "max_tokens": max_tokens}
        replies.append(httpx.post(f"{process.url}/v1/completions", json=body, timeout=60))

    thread = threading.Thread(target=post)
    thread.start()
    process.wait_running()
    return thread, replies


def test_metrics_of_fronts_that_share_stored_responses(start: Starter) -> None:
    process = start("--api-server-count", "2")
    process.wait_ready()
    stored = process.client.post("/v1/responses", json={"input": "a", "max_output_tokens": 1})
    assert stored.status_code == 200, stored.text
    metrics = process.client.get("/metrics")
    assert metrics.status_code == 200
    assert 'handler="/v1/responses"' in metrics.text


def test_sigterm_drains_then_ends_with_zero(start: Starter) -> None:
    process = start(**SLOWLY)
    process.wait_ready()
    long = process.client.post("/v1/completions", json={"prompt": [1] * 300_000})
    assert long.status_code == 400  # by way of the process for big bodies
    assert "got 300000 tokens" in long.text
    thread, replies = in_background(process, max_tokens=100)
    process.drain()
    refused = process.client.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    assert refused.headers["connection"] == "close"
    process.pull("hurry")
    thread.join()
    assert replies[0].status_code == 200
    assert len(replies[0].json()["choices"][0]["text"]) == 100
    assert process.end() == 0


def test_the_last_spans_leave_before_the_process_ends(start: Starter) -> None:
    with collecting() as collector:
        process = start("--otlp-traces-endpoint", collector.url)
        process.wait_ready()
        body = {"prompt": "a", "max_tokens": 2}
        assert httpx.post(f"{process.url}/v1/completions", json=body).status_code == 200
        process.popen.send_signal(signal.SIGTERM)
        assert process.end(60) == 0
        assert [span.name for span in collector.spans] == ["text_completion tailrace-demo"]


def test_patience_ends_with_an_error_for_who_waits(start: Starter) -> None:
    process = start("--shutdown-timeout", "0.2", **SLOWLY)
    process.wait_ready()
    thread, replies = in_background(process, max_tokens=250)
    process.popen.send_signal(signal.SIGTERM)
    thread.join()
    assert replies[0].status_code == 503
    assert replies[0].json()["error"]["code"] == "shutting_down"
    assert process.end() == 0


def test_patience_ends_for_who_never_sends_a_body(start: Starter) -> None:
    process = start("--shutdown-timeout", "0.2")
    process.wait_ready()
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        head += b"content-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        connection.sendall(head)
        time.sleep(0.2)  # it was read
        process.popen.send_signal(signal.SIGTERM)
        connection.settimeout(30)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 503")
    assert process.end(4) == 0, "uvicorn would have waited for 5 s"


def test_a_second_signal_ends_at_once(start: Starter) -> None:
    process = start(**SLOWLY)
    process.wait_ready()
    body = {"prompt": "a", "max_tokens": 250, "stream": True}
    with process.client.stream("POST", "/v1/completions", json=body):
        process.drain()
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM  # drained, with 0


def test_a_signal_while_starting(start: Starter) -> None:
    process = start(FAKE_START_S="60")
    assert process.popen.stderr is not None
    while "starting" not in process.popen.stderr.readline():
        assert process.popen.poll() is None
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0


def test_a_lost_engine_is_seen_then_ends_the_server(start: Starter) -> None:
    process = start(FAKE_LOST_S="4", **SLOWLY)
    process.wait_ready()
    thread, replies = in_background(process, max_tokens=250)
    process.pull("die")
    thread.join()
    assert replies[0].status_code == 500
    assert replies[0].json()["error"]["code"] == "engine_dead"
    assert process.client.get("/health").status_code == 503
    assert process.end() == 1


async def test_an_engine_that_is_silent_may_come_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "ENGINE_LOST_S", 0.5)
    reasons = iter(["silent", None, "silent"])
    ends = SimpleNamespace(has_ended=False, failure=lambda: next(reasons, "killed"))
    assert await serve_module.engine_lost(cast(Any, ends)) == "killed"
    first, back, second = (record.getMessage() for record in caplog.records)
    assert first == second == "engine lost: silent; ending in 0.5 s, unless it goes on"
    assert back.startswith("the engine is back after 0.")
    caplog.clear()
    ends.has_ended = True
    assert await serve_module.engine_lost(cast(Any, ends)) == "killed"
    assert caplog.messages == ["engine lost: killed; ending in 0.5 s"]


def test_a_unix_socket(start: Starter, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = start("--uds", str(path))
    for _ in range(1200):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                break
        time.sleep(0.05)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=30) as client:
        assert client.get("http://x/health").status_code == 200
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0


def test_more_connections_than_files(start: Starter) -> None:
    """The soft limit is raised to the hard one, 300 here; of these 128 are kept for all else."""
    process = start(shell="ulimit -S -n 100; ulimit -H -n 300; ")
    process.wait_ready()
    idle = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(600)]
    assert httpx.get(f"{process.url}/health", timeout=60).status_code == 200
    body = {"prompt": "ab", "max_tokens": 2}
    reply = httpx.post(f"{process.url}/v1/completions", json=body, timeout=60)
    assert reply.json()["choices"][0]["text"] == "ab"
    metrics = httpx.get(f"{process.url}/metrics", timeout=60).text
    over = re.search(r"^tailrace_connections_over_limit_total{.*} (\S+)", metrics, re.MULTILINE)
    assert over is not None
    assert float(over[1]) >= 400
    for connection in idle:
        connection.close()
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0
    assert process.popen.stderr is not None
    said = process.popen.stderr.read()
    assert said.count("over 172 connections are open") == 1
    assert "Traceback" not in said


class TestBind:
    def test_a_port_in_use_is_known_before_anything_starts(self, start: Starter) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = start("--port", str(port), FAKE_START_S="600")
            assert process.end() == 2
            assert process.popen.stderr is not None
            error = process.popen.stderr.read()
        expected = f"tailrace: error: --port {port} on 127.0.0.1: Address already in use\n"
        assert error == expected

    def test_an_address_that_is_not_ours(self) -> None:
        with pytest.raises(ConfigError, match=r"on 192\.0\.2\.1: Cannot assign"):
            bind(load_settings({"host": "192.0.2.1", "port": "0"}))

    def test_a_unix_socket_in_use_and_one_left_over(self, tmp_path: Path) -> None:
        settings = load_settings({"uds": str(tmp_path / "s")})
        with bind(settings) as first:
            first.listen()
            with pytest.raises(ConfigError, match="a server listens there"):
                bind(settings)
        bind(settings).close()

    def test_a_certificate_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "pem").write_text("x")
        file = str(tmp_path / "pem")
        with pytest.raises(ConfigError, match="--ssl-certfile"):
            bind(load_settings({"ssl_certfile": file, "ssl_keyfile": file}))


def test_standard_error_may_be_closed(start: Starter) -> None:
    """The next file would have its number, and get what is logged."""
    process = start(shell="exec 2>&-; ")
    process.wait_ready()
    assert process.client.get("/health").status_code == 200
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0
