"""`tailrace health`: asks a server that runs here how it is, for the health checks of containers.

It takes the flags and variables that the server was started with, so that it knows port, TLS and
socket. It imports little, since it runs every few seconds.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import sys

from server.command.settings import Settings

TIMEOUT_S = 5.0
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def health(settings: Settings) -> int:
    """Ask for `/health` and print the answer; returns 0 where the engine can serve, else 1."""
    try:
        connection = _connection(settings)
        connection.request("GET", f"{settings.root_path}/health", headers={"Host": "localhost"})
        reply = connection.getresponse()
        raw = reply.read()
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"tailrace: {_where(settings)} does not answer: {error}\n")
        return 1
    sys.stdout.write(f"{_words(raw)}\n")
    return 0 if reply.status == 200 else 1


def _words(raw: bytes) -> str:
    try:
        content = json.loads(raw)
        return str(content["error"]["message"] if "error" in content else content["status"])
    except (ValueError, KeyError, TypeError):
        return raw.decode(errors="replace")


def _where(settings: Settings) -> str:
    return settings.uds or f"{_host(settings)}:{settings.port}"


def _host(settings: Settings) -> str:
    return _ANY_HOST.get(settings.host, settings.host)


def _connection(settings: Settings) -> http.client.HTTPConnection:
    if settings.uds is not None:
        return _UnixConnection(settings.uds)
    if settings.ssl_certfile is None:
        return http.client.HTTPConnection(_host(settings), settings.port, timeout=TIMEOUT_S)
    # It is this machine that is asked, under a name that the certificate need not have. A server
    # that wants certificates of its clients is shown its own.
    context = ssl._create_unverified_context()
    context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    return http.client.HTTPSConnection(
        _host(settings), settings.port, timeout=TIMEOUT_S, context=context
    )


class _UnixConnection(http.client.HTTPConnection):
    """A connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
