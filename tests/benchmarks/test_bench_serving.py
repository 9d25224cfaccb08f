"""The server of a benchmark: it has nothing left to build, and leaves nothing that runs."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks import bench_serving
from benchmarks.bench_serving import serving
from server.command.parser import Parser, add_settings

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
END_S = 30.0


def test_what_a_server_started_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        commands.append(command)
        program = [sys.executable, "-c", SERVER, *command]
        return subprocess.Popen(program, stderr=subprocess.DEVNULL, **options)

    monkeypatch.setattr(bench_serving, "subprocess", SimpleNamespace(Popen=start))
    with serving("folder", "--no-wait-for-kernels") as url:
        compiler = int(urllib.request.urlopen(f"{url}/child", timeout=10).read())
        assert is_running(compiler)
    deadline = time.monotonic() + END_S
    while is_running(compiler):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parser = Parser()
    add_settings(parser)
    words = commands[0][4:]
    assert not vars(parser.parse_args(words))["wait_for_kernels"], "the caller's flags count"
    assert vars(parser.parse_args(words[:-1]))["wait_for_kernels"]


def is_running(pid: int) -> bool:
    """Whether a process is there that has not ended, reaped or not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
