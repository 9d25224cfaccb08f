"""Another server asked over HTTP, one request at a time: by audits and by conformance runs."""

from __future__ import annotations

import argparse
import http.client
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple

import orjson

from engine.errors import ConfigError
from server.bench.target import parse_target


class RemoteReply(NamedTuple):
    """A reply as it came.

    Attributes:
        status: of HTTP.
        body: its bytes.
        content_type: in lower case, without parameters; empty where there is none.
    """

    status: int
    body: bytes
    content_type: str

    def json(self) -> Any:
        """The body as JSON, None where it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which server is asked, as whom and for which model."""
    words = "The server's URL, with /v1 at the end or without."
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", metavar="URL", help=words)
    words = "The model to ask for; the server's first by default."
    parser.add_argument("--model", default=None, metavar="NAME", help=words)
    words = "The server's key. [OPENAI_API_KEY]"
    parser.add_argument("--api-key", default=None, metavar="KEY", help=words)


class Remote:
    """One server.

    Args:
        base_url: with `/v1` at its end or without; raises `ConfigError` where it is no URL.
        key: sent as a bearer token.
        verifies: certificates are checked.
        timeout_s: longest wait for a part of a reply.
    """

    def __init__(
        self, base_url: str, *, key: str | None, verifies: bool = True, timeout_s: float = 300.0
    ) -> None:
        self.url = parse_target(base_url, key=key).url
        self._headers = {"Content-Type": "application/json", "Accept": "*/*"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._context = ssl.create_default_context()
        if not verifies:
            self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._timeout_s = timeout_s

    def get(self, path: str) -> RemoteReply:
        """The reply to a GET; raises `ConfigError` where the server is not reached."""
        return self._send("GET", path, None)

    def post(self, path: str, body: Any) -> RemoteReply:
        """The reply to a POST of JSON, or of bytes as they are."""
        return self._send("POST", path, body if isinstance(body, bytes) else orjson.dumps(body))

    def _send(self, method: str, path: str, body: bytes | None) -> RemoteReply:
        request = urllib.request.Request(
            self.url + path, data=body, headers=self._headers, method=method
        )
        try:
            with urllib.request.urlopen(
                request, timeout=self._timeout_s, context=self._context
            ) as reply:
                return _reply(reply.status, reply)
        except urllib.error.HTTPError as error:
            return _reply(error.code, error)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise ConfigError(f"{self.url}{path}: {why}; see --base-url") from None


def _reply(status: int, reply: Any) -> RemoteReply:
    kind = (reply.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    return RemoteReply(status, reply.read(), kind)
