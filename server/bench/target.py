"""The server that is measured: its address, its key, and which model it serves."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from engine.errors import ConfigError
from server.bench.connection import ClientConnection, ConnectionLostError, reason
from server.bench.events import error_message

ASK_S = 30.0
"""The server has to say which models it has, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go.

    Attributes:
        path: what comes before `/v1` in the URL: nothing, or `/` and words.
        key: sent as a bearer token where it is not None.
        verifies: certificates are checked.
    """

    host: str
    port: int
    path: str = ""
    is_tls: bool = False
    verifies: bool = True
    key: str | None = None

    @property
    def url(self) -> str:
        """The base URL, without a key."""
        scheme = "https" if self.is_tls else "http"
        return f"{scheme}://{self._authority}{self.path}"

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        """A whole request with a JSON body."""
        raw = orjson.dumps(body)
        framing = f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
        return self._head("POST", path, framing) + raw

    def get(self, path: str) -> bytes:
        """A whole request without a body."""
        return self._head("GET", path, "")

    def _head(self, method: str, path: str, more: str) -> bytes:
        key = "" if self.key is None else f"Authorization: Bearer {self.key}\r\n"
        line = f"{method} {self.path}{path} HTTP/1.1\r\nHost: {self._authority}\r\n"
        return f"{line}Accept: */*\r\n{key}{more}\r\n".encode("latin-1")

    async def connect(self) -> ClientConnection:
        """A new connection.

        Raises:
            OSError: the server is not reached.
        """
        context: ssl.SSLContext | None = None
        if self.is_tls:
            context = ssl.create_default_context()
            if not self.verifies:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            ClientConnection, self.host, self.port, ssl=context
        )
        return connection


def parse_target(base_url: str, *, key: str | None, verifies: bool = True) -> Target:
    """The target of a base URL, with `/v1` at its end or without.

    Raises:
        ConfigError: it is no URL of HTTP, or a key cannot be sent.
    """
    try:
        parts = urlsplit(base_url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConfigError(f"--base-url {base_url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"--base-url must be http://HOST:PORT or https://..., got {base_url!r}")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("--api-key must be printable ASCII")
    is_tls = parts.scheme == "https"
    return Target(
        host=host,
        port=port or (443 if is_tls else 80),
        path=parts.path.rstrip("/").removesuffix("/v1"),
        is_tls=is_tls,
        verifies=verifies,
        key=key,
    )


async def find_model(target: Target, model: str | None) -> str:
    """The name of the model to ask for: the one given, or the first that the server has.

    Raises:
        ConfigError: the server is not reached, refuses the key, or does not have the model.
    """
    status, body = await _ask(target, "/v1/models")
    if status in (401, 403):
        reason = error_message(body) or "no reason given"
        raise ConfigError(f"{target.url} refuses the key ({status}: {reason}); see --api-key")
    names = _model_names(body) if status == 200 else []
    if model is None and not names:
        raise ConfigError(f"{target.url}/v1/models names no model ({status}); name it with --model")
    if model is not None and names and model not in names:
        raise ConfigError(
            f"{target.url} has no model {model!r}; it has {', '.join(map(repr, names))}"
        )
    return names[0] if model is None else model


async def _ask(target: Target, path: str) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(ASK_S):
            connection = await target.connect()
            status = await connection.send(target.get(path))
            connection.close()
    except TimeoutError:
        raise ConfigError(f"{target.url} has not answered within {ASK_S:g} s") from None
    except (OSError, ConnectionLostError) as error:
        words = f"{target.url} cannot be reached: {reason(error)}; see --base-url"
        raise ConfigError(words) from None
    return status, bytes(connection.body)


def _model_names(body: bytes) -> list[str]:
    try:
        cards = orjson.loads(body)["data"]
        return [str(card["id"]) for card in cards]
    except (ValueError, KeyError, TypeError):
        return []
