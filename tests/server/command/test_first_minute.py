"""The real command as a newcomer runs it: from any directory, and without a trace afterwards."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

COMMAND = [sys.executable, "-P", "-c", "from server.cli import run; run()", "serve"]
"""What the installed program `tailrace` runs, without the need to install it."""
CACHE = str(Path(tempfile.gettempdir()) / "tailrace-tests-inductor")
"""Torch keeps compiled code in the temporary folder, which is of use to the next start."""
HOSTILE = ("inspect.py", "engine.py", "struct.py", "signal.py", "logging.py", "torch.py")


class Server:
    """A server of the demo model, in a directory of its own, with a temporary folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        home = folder / "home"
        home.mkdir()
        for name in HOSTILE:
            (home / name).write_text(f"raise SystemExit('imported {name} from here')")
        (home / "sampling").mkdir()
        (home / "sampling" / "__init__.py").write_text("raise SystemExit('imported sampling')")
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(
                [*COMMAND, "--port", str(port), *arguments],
                cwd=home,
                env={**os.environ, "TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": CACHE},
                stderr=log,
            )

    def wait_ready(self) -> None:
        for _ in range(1200):
            try:
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.popen.poll() is None, self.log.read_text()
            time.sleep(0.1)
        raise AssertionError("never ready")

    def wait_gone(self, engine: psutil.Process) -> None:
        """Wait for the end of both processes."""
        self.popen.wait(60)
        psutil.wait_procs([engine], timeout=60)
        assert not engine.is_running()


@pytest.fixture(params=["1", pytest.param("2", marks=pytest.mark.slow)])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(tmp_path, "--api-server-count", request.param)
    try:
        server.wait_ready()
        yield server
    finally:
        server.popen.kill()
        server.popen.wait()


def engine_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.popen.pid).children()
    return next(c for c in children if "engine.process" in " ".join(c.cmdline()))


LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) [a-z_.]+: \S.*"


def test_a_day_in_a_hostile_directory(server: Server) -> None:
    """No file of it is imported, by no process; every line has the format; nothing is left."""
    body = b'{"prompt":"def f","max_tokens":4}' + b" " * (600 << 10)  # by the other process, too
    headers = {"content-type": "application/json"}
    reply = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    engine = engine_of(server)
    server.popen.send_signal(signal.SIGINT)
    server.wait_gone(engine)
    assert server.popen.returncode == 0
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(LINE, line)] == []
    assert any(" access: " in line and "POST /v1/completions 200" in line for line in lines)
    assert any(" engine: " in line for line in lines)
    assert not any("uvicorn" in line for line in lines)
    assert list(server.temporary.iterdir()) == []


@pytest.mark.slow
def test_two_signals_leave_nothing(server: Server) -> None:
    engine = engine_of(server)
    with httpx.stream(
        "POST",
        f"{server.url}/v1/completions",
        json={"prompt": "def f", "max_tokens": 2000, "ignore_eos": True, "stream": True},
    ):
        server.popen.send_signal(signal.SIGINT)
        time.sleep(0.2)
        server.popen.send_signal(signal.SIGINT)
        server.wait_gone(engine)
    assert server.popen.returncode == 128 + signal.SIGINT
    assert "leak" not in server.log.read_text()
    assert list(server.temporary.iterdir()) == []


@pytest.mark.slow
def test_a_kill_leaves_nothing(server: Server) -> None:
    engine = engine_of(server)
    server.popen.kill()
    server.wait_gone(engine)
    assert list(server.temporary.iterdir()) == []
