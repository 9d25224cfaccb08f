"""A front: the HTTP server over an engine, in this process, from its first request to its last."""

from __future__ import annotations

import asyncio
import gc
import importlib
import socket
import sys
from typing import Any

import msgspec
import uvicorn

from engine.client import EngineHandle
from engine.logs import adopt_library_lines
from engine.submission import EngineDeadError
from server.config import ServerConfig
from server.fronts import FrontTable
from server.http.server import make_server
from server.text.tokenizer import Tokenizer, load_tokenizer

GC_THRESHOLDS = (100_000, 10, 10)
"""A thousand open requests are some 50,000 objects, which Python would else go through again and
again, 80 ms at a time: a fifth of what a short request costs. Few of ours are garbage in cycles."""
SWITCH_S = 500e-6
"""Seconds after which the event loop gets the interpreter back from the worker; Python's own 5 ms
are as long as several requests take."""


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a front needs to know before there is an engine.

    Attributes:
        tokenizer: folder or hub id of the tokenizer.
        revision: its branch, tag or commit; None for the default.
        server_options: arguments of `make_server`.
    """

    http: ServerConfig
    tokenizer: str
    revision: str | None
    trust_remote_code: bool
    server_options: dict[str, Any]


class Front:
    """Answers on a listening socket, as one of the fronts of a table."""

    def __init__(self, config: FrontConfig, listener: socket.socket, fronts: FrontTable) -> None:
        self._config = config
        self._listener = listener
        self._fronts = fronts
        self._tokenizer: Tokenizer | None = None
        self._serving: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Load what needs no engine, off the event loop; raises `ConfigError`."""
        config = self._config
        loading = asyncio.to_thread(
            load_tokenizer,
            config.tokenizer,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
        importing = asyncio.to_thread(importlib.import_module, "server.app")  # slow
        self._tokenizer, _ = await asyncio.gather(loading, importing)

    async def attach(self, engine: EngineHandle) -> None:
        """Answer over an engine from now on."""
        from server.app import create_app  # `load` has imported them, beside the engine's start
        from server.context import Context

        assert self._tokenizer is not None
        _settle_interpreter()
        app = create_app(engine, self._tokenizer, self._config.http, self._fronts)
        context: Context = app.state.context
        options = self._config.server_options
        self._context = context
        self._fronts.enter()
        self._server = make_server(app, context.connections, self._fronts, **options)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        context.large.start_ahead()

    async def ended(self) -> None:
        """Wait until it answers no more; raises what ended it, if anything did."""
        assert self._serving is not None
        await asyncio.shield(self._serving)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for open ones; returns whether all ended in time."""
        return await self._context.lifecycle.drain(timeout_s)

    def fail_all(self, error: EngineDeadError) -> None:
        """Answer every open request with an error."""
        self._context.fail_all(error)

    async def close(self) -> None:
        """Close every connection and wait for the end; raises what ended the server."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


def _settle_interpreter() -> None:
    """Tune Python to many requests, once all modules and the tokenizer are there."""
    adopt_library_lines()
    gc.collect()
    gc.freeze()  # a collection would look through the tokenizer's vocabulary for 0.3 s, mid-stream
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)


def new_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop of the kind that uvicorn prefers here."""
    factory = uvicorn.Config("", log_config=None).get_loop_factory()
    return factory() if factory is not None else asyncio.new_event_loop()
