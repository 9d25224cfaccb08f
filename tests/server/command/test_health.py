"""`tailrace health` finds a server by the settings that it was started with."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, UnixStreamServer
from typing import Any, ClassVar

import pytest

from server import cli
from tests.server.certificates import make_certificate


class Handler(BaseHTTPRequestHandler):
    """Answers as the server does, well or ill."""

    reply: tuple[int, bytes] = (200, b'{"status":"ok"}')
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        status, body = self.reply
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def answering(server: Any, *reply: Any) -> Iterator[None]:
    Handler.reply = reply or (200, b'{"status":"ok"}')
    Handler.paths = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_on_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    server = TCPServer(("127.0.0.1", 0), Handler)
    port = str(server.server_address[1])
    with answering(server):
        assert cli.main(["health", "--port", port, "--host", "0.0.0.0"]) == 0
        assert cli.main(["health", "--port", port, "--root-path", "/api"]) == 0
    assert Handler.paths == ["/health", "/api/health"]
    assert capsys.readouterr().out == "ok\nok\n"


def test_the_variables_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = TCPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setenv("TAILRACE_PORT", str(server.server_address[1]))
    with answering(server):
        assert cli.main(["health"]) == 0


def test_an_engine_that_cannot_serve(capsys: pytest.CaptureFixture[str]) -> None:
    server = TCPServer(("127.0.0.1", 0), Handler)
    with answering(server, 503, b'{"error":{"message":"the engine cannot serve: killed"}}'):
        assert cli.main(["health", "--port", str(server.server_address[1])]) == 1
    assert capsys.readouterr().out == "the engine cannot serve: killed\n"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert cli.main(["health", "--port", str(port)]) == 1
    assert f"127.0.0.1:{port} does not answer" in capsys.readouterr().err


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with answering(UnixStreamServer(path, Handler)):
        assert cli.main(["health", "--uds", path]) == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_tls(tmp_path: Path) -> None:
    """Its certificate is of no name by which it is asked here."""
    files = make_certificate(tmp_path)
    server = TCPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["ssl_certfile"], files["ssl_keyfile"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with answering(server):
        flags = ("--ssl-certfile", files["ssl_certfile"], "--ssl-keyfile", files["ssl_keyfile"])
        assert cli.main(["health", "--port", str(server.server_address[1]), *flags]) == 0
