"""A real server in a process of its own, on the demo model."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from openai import OpenAI

NUM_FRONTS = os.environ.get("SERVING_FRONTS", "1")
"""The fronts of a server whose test does not say how many."""


@dataclass
class Server:
    """A running server and ways to look at it."""

    process: subprocess.Popen[str]
    url: str

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    @property
    def engine(self) -> psutil.Process:
        """The engine process."""
        children = psutil.Process(self.process.pid).children()
        return next(c for c in children if "engine.process" in " ".join(c.cmdline()))

    @property
    def fronts(self) -> list[psutil.Process]:
        """The processes of its fronts, where it has several."""
        children = psutil.Process(self.process.pid).children()
        return [c for c in children if "front_process" in " ".join(c.cmdline())]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels, as they are written."""
        lines = self.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


def connection_to(server: Server, front: psutil.Process) -> httpx.Client:
    """A client whose one connection is that front's."""
    with contextlib.ExitStack() as others:  # open meanwhile, so that the next one goes elsewhere
        for _ in range(50):
            client = httpx.Client(base_url=server.url, timeout=120)
            reply = client.get("/version")
            port = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
            if any(each.raddr and each.raddr.port == port for each in front.net_connections("tcp")):
                return client
            others.enter_context(contextlib.closing(client))
    raise AssertionError("that front takes no connections")


@contextlib.contextmanager
def connections(server: Server) -> Iterator[list[httpx.Client]]:
    """A client of each front."""
    clients = [connection_to(server, front) for front in server.fronts]
    yield clients
    for client in clients:
        client.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(
    *flags: str,
    ready_s: float = 240.0,
    program: Sequence[str | Path] = (sys.executable, "-m", "server.cli"),
    folder: Path | None = None,
    log: int | None = None,
    port: int | None = None,
) -> Iterator[Server]:
    """Start `tailrace serve` with the demo model and wait until it is ready.

    Args:
        program: what `tailrace` is.
        folder: where it is started.
        log: the file that gets its log lines; None for the tests' own.
        port: where it listens; None for any that is free.
    """
    port = port or free_port()
    command = [*program, "serve", "--port", str(port), "--device", "cpu", *flags]
    if "--api-server-count" not in flags:
        command += ["--api-server-count", NUM_FRONTS]
    process = subprocess.Popen(command, text=True, cwd=folder, stderr=log)
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + ready_s
        while not _ready(server):
            assert process.poll() is None, f"the server ended with status {process.returncode}"
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()


def _ready(server: Server) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return server.get("/ready").status_code == 200
    return False


def refused(*arguments: str) -> tuple[int, str]:
    """Exit status and standard error of a server that must not start."""
    command = [sys.executable, "-m", "server.cli", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def counted(metrics: dict[str, float], name: str) -> float:
    return sum(value for key, value in metrics.items() if key.startswith(f"tailrace_{name}"))


def wait_until_idle(server: Server) -> None:
    """Wait until no row and no block is held."""
    deadline = time.monotonic() + 60
    while True:
        metrics = server.metrics()
        held = [counted(metrics, name) for name in ("num_requests_running", "kv_cache_usage_perc")]
        if not any(held):
            return
        assert time.monotonic() < deadline, held
        time.sleep(0.2)
