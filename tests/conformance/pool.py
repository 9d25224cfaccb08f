"""Servers for a suite's tests, each started once for all tests that ask for the same flags."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from demo import MODEL_FOLDER
from tests.serving.process import Server, serve

MAX_SERVERS = 2
"""As many are kept running; the one that was asked for least recently ends for another."""
LOG = "servers.log"
LONG_CONTEXT = 32768


def long_model(folder: Path) -> Path:
    """The demo model in a folder that says it has a long context, which some tests need."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in MODEL_FOLDER.iterdir():
        if path.name != "config.json" and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    config = json.loads((MODEL_FOLDER / "config.json").read_text())
    config["max_position_embeddings"] = LONG_CONTEXT
    (folder / "config.json").write_text(json.dumps(config))
    about = folder / "tokenizer_config.json"
    own = json.loads((MODEL_FOLDER / about.name).read_text())
    about.unlink()
    about.write_text(json.dumps(own | {"model_max_length": LONG_CONTEXT}))
    return folder


def without_thoughts() -> str:
    """The demo model's chat template with thoughts off, for tests of models that have none."""
    own = json.loads((MODEL_FOLDER / "tokenizer_config.json").read_text())["chat_template"]
    return f"{{%- set enable_thinking = false -%}}\n{own}"


def template_without_thoughts(folder: Path) -> Path:
    """The same in a file."""
    path = folder / "without_thoughts.jinja"
    path.write_text(without_thoughts())
    return path


class ServerPool:
    """Keeps servers of the demo model running between tests.

    Args:
        port: where they listen, so that only one can be; None for ports of their own.
    """

    def __init__(self, port: int | None = None) -> None:
        self._port = port
        self._max_servers = MAX_SERVERS if port is None else 1
        self._servers: dict[tuple[str, ...], tuple[Server, ExitStack]] = {}

    def server(self, flags: Sequence[str]) -> Server:
        """A running server with these flags.

        Raises:
            RuntimeError: it does not start.
        """
        key = tuple(flags)
        if key in self._servers:
            self._servers[key] = self._servers.pop(key)
            server = self._servers[key][0]
            if server.process.poll() is None:
                return server
            self._end(key)
        while len(self._servers) >= self._max_servers:
            self._end(next(iter(self._servers)))
        stack = ExitStack()
        log = stack.enter_context(open(LOG, "a"))  # noqa: SIM115 - the stack closes it
        print(time.strftime("%X"), *flags, file=log, flush=True)
        try:
            server = stack.enter_context(
                serve(*flags, ready_s=120, log=log.fileno(), port=self._port)
            )
        except AssertionError as error:
            stack.close()
            raise RuntimeError(f"{error}: {' '.join(flags)}") from None
        self._servers[key] = server, stack
        return server

    def close(self) -> None:
        """End all servers."""
        for key in list(self._servers):
            self._end(key)

    def _end(self, key: tuple[str, ...]) -> None:
        server, stack = self._servers.pop(key)
        server.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(timeout=20)
        stack.close()


def spoken(flags: Sequence[str], without: Sequence[str], bare: Sequence[str]) -> list[str]:
    """Another server's flags, without those that mean nothing for the demo model on a CPU.

    Args:
        without: flags that are dropped with their value.
        bare: flags that are dropped and have none.
    """
    kept: list[str] = []
    skips = False
    for flag in flags:
        name = flag.partition("=")[0]
        if skips:
            skips = False
        elif name in without:
            skips = "=" not in flag
        elif name not in bare:
            kept.append(flag)
    return kept
