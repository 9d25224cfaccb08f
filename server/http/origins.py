"""Which addresses and which pages requests may come by: no page elsewhere may drive a local server.

A browser sends requests of any page to any address it can reach, `localhost` included. It tells the
page's origin, and the host name it was led to; what is foreign there is refused.
"""

from __future__ import annotations

from starlette.types import Scope

from server.errors import ApiError
from server.http.account import header
from server.schema.base import shown

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Names of the machine itself; a page cannot make a browser send one of them for its own site."""


class Origins:
    """Checks `Host` and `Origin` of requests. Clients that are no browser send no `Origin`."""

    def __init__(self, allowed_hosts: tuple[str, ...], allowed_origins: tuple[str, ...]) -> None:
        """No hosts, or "*" among them, allows all; "*" among the origins likewise."""
        self._hosts = frozenset() if "*" in allowed_hosts else frozenset(allowed_hosts)
        self._origins = frozenset(allowed_origins)

    def check(self, scope: Scope) -> None:
        """Raise a 403 for a host that is not served or an origin that is foreign.

        Of several hosts a proxy may have read another than the first: a 400 (RFC 9112, 3.2).
        """
        host = header(scope, b"host")
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise ApiError(400, "a request has one Host header", code="several_hosts")
        if self._hosts and host is not None and host_name(host) not in self._hosts:
            raise ApiError(
                403,
                f"this server does not answer to the host {shown(host)} (--allowed-hosts)",
                code="host_not_allowed",
            )
        origin = header(scope, b"origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        _, found, place = origin.partition("://")
        if not found or place != host:
            raise ApiError(
                403,
                f"pages of {shown(origin)} may not use this server (--allowed-origins)",
                code="origin_not_allowed",
            )


def host_name(host: str) -> str:
    """The name in a `Host` header, in lower case, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
