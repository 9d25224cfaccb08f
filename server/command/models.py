"""Checks names of models before anything slow begins: a typo is reported at once, offline too.

The hub's own library repeats a request that found no network for minutes, in every process that
asks it.
"""

from __future__ import annotations

import difflib
import re
import socket
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants

from engine.config import ConfigError, EngineConfig
from server.command.folders import check_file, check_folder

CONNECT_S = 2.0
"""How long the hub, or the proxy before it, may take to accept a connection."""
_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]{0,95}", re.ASCII)
_NEAR = 0.8
"""Names so much alike are taken for one and the same with a typo; "modle" and "model" just are."""


def check_models(config: EngineConfig, tokenizer: str | None) -> None:
    """Raise `ConfigError` for a model, tokenizer or drafter that cannot be found.

    Args:
        tokenizer: its folder or hub id, where it is not the model's.
    """
    check_name("MODEL", config.model.model)
    folder = Path(config.model.model).expanduser()
    if folder.is_dir():
        check_folder(folder, config.model)
    if tokenizer is not None:
        check_name("--tokenizer", tokenizer)
    if config.speculation is not None and config.speculation.model is not None:
        check_name("--speculative-config model", config.speculation.model)


def check_name(flag: str, name: str) -> None:
    """Raise `ConfigError` for what is no folder and cannot be a model of the hub.

    A name without an owner in front, of which the hub has a few old ones, is taken for a folder's
    where one here is nearly called so.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return
    if path.is_file():
        check_file(flag, path)
    near = _nearest_folder(path)
    hint = f"; did you mean {near}?" if near else ""
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ConfigError(f"{flag} {name}: there is no such folder{hint}")
    if not _HUB_ID.fullmatch(name):
        raise ConfigError(f"{flag} {name}: neither a folder nor a hub id (owner/name){hint}")
    if _is_cached(name):
        return
    if near and "/" not in name:
        raise ConfigError(
            f"{flag} {name}: there is no such folder{hint} Models of the hub are named owner/name"
        )
    if (obstacle := _hub_obstacle()) is not None:
        raise ConfigError(
            f"{flag} {name}: there is no such folder, and as a hub id it is not in the cache "
            f"({constants.HF_HUB_CACHE}) and cannot be fetched: {obstacle}; name a folder, or copy "
            f"the model into the cache on a machine that reaches the hub{hint}"
        )


def _nearest_folder(path: Path) -> str | None:
    """The path of the folder beside `path` whose name is most alike; None if none is."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.is_dir()]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=_NEAR)
    if not near:
        return None
    return f"./{near[0]}" if path.parent == Path() else str(path.parent / near[0])


def _is_cached(hub_id: str) -> bool:
    """Whether something of a model is in the hub's cache on this machine."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"
    return (folder / "snapshots").is_dir()


def _hub_obstacle() -> str | None:
    """Why nothing can be fetched from the hub; None where it, or the proxy before it, answers."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    endpoint = urlsplit(constants.ENDPOINT)
    server = endpoint
    if proxy := _proxy(endpoint.scheme, endpoint.hostname or ""):
        server = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    ports = {"http": 80, "https": 443}
    host, port = server.hostname or "", server.port or ports.get(server.scheme, 80)
    found: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
            found.append("")
        except OSError as error:
            found.append(error.strerror or str(error))

    # In a thread, since looking up a name cannot be given a limit of time.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    reason = found[0] if found else f"no connection within {CONNECT_S:g} s"
    return f"{host}:{port}: {reason}" if reason else None


def _proxy(scheme: str, host: str) -> str | None:
    """The proxy that requests to a host go by."""
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all")
