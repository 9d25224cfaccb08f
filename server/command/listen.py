"""Binds the address where the server listens, before anything slow starts."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

from engine.config import ConfigError
from server.command.settings import Settings


def bind(settings: Settings) -> socket.socket:
    """Bind a socket that does not listen yet; raises `ConfigError` if the address is taken."""
    _check_tls(settings)
    if settings.uds is not None:
        return _bind_unix(Path(settings.uds))
    try:
        infos = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--host {settings.host}: {error.strerror}") from None
    family, kind, protocol, _, where = infos[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--port {settings.port} on {settings.host}: {os.strerror(error.errno or 0)}"
        ) from None
    return listener


def _bind_unix(path: Path) -> socket.socket:
    if path.is_socket():  # perhaps left over
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise ConfigError(f"--uds {path}: a server listens there")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"--uds {path}: {error}") from None
    return listener


def _check_tls(settings: Settings) -> None:
    if settings.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ssl-certfile {settings.ssl_certfile}: {error}") from None


def address(settings: Settings, listener: socket.socket) -> str:
    """The address of the server as clients write it."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
