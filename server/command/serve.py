"""`tailrace serve`: bind, start engine and tokenizer, answer, drain, end.

Exit status: 0 after SIGTERM or SIGINT, 2 for a setting or model that cannot be served, 1 when
the engine was lost. A lost engine fails every waiting request at once; the process ends
`ENGINE_LOST_S` later, so that health checks see it and whoever supervises restarts it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import time

import uvicorn
from msgspec import structs
from prometheus_client import disable_created_metrics
from starlette.types import ASGIApp

from engine.client import EngineClient, EngineHandle
from engine.config import ConfigError, EngineConfig, EngineInfo
from engine.logs import adopt_library_lines
from engine.submission import EngineDeadError
from server.command.configure import engine_config, server_config
from server.command.listen import address, bind
from server.command.logs import configure_server_logging
from server.command.models import check_models
from server.command.progress import ProgressBar
from server.command.settings import Settings
from server.config import ServerConfig
from server.context import Context
from server.http.admission import ShutdownError
from server.http.connections import raise_file_limit
from server.http.server import HttpServer, make_server
from server.text.tokenizer import Tokenizer, load_tokenizer
from server.version import VERSION

logger = logging.getLogger("tailrace")

EXIT_LOST = 1
ENGINE_LOST_S = 5.0
GC_THRESHOLDS = (100_000, 10, 10)
"""A thousand open requests are some 50,000 objects, which Python would else go through again and
again, 80 ms at a time: a fifth of what a short request costs. Few of ours are garbage in cycles."""
SWITCH_S = 500e-6
"""Seconds after which the event loop gets the interpreter back from the worker; Python's own 5 ms
are as long as several requests take."""


class _Signals:
    """Handles SIGTERM and SIGINT: the first ends the server in good order, the second at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self.first.is_set():
            os._exit(128 + number)  # the engine process ends with its pipe
        self.first.set()


def serve(settings: Settings) -> int:
    """Serve until a signal or the engine's end; raises `ConfigError` before that."""
    configure_server_logging(settings)
    # Python processes that are started from here, for large bodies, import nothing from the
    # directory the user happens to stand in.
    os.environ["PYTHONSAFEPATH"] = "1"
    disable_created_metrics()  # type: ignore[no-untyped-call]
    config = engine_config(settings)
    check_models(config, settings.tokenizer)
    with bind(settings) as listener, asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_run(settings, config, listener))


def _new_loop() -> asyncio.AbstractEventLoop:
    factory = uvicorn.Config("", log_config=None).get_loop_factory()
    return factory() if factory is not None else asyncio.new_event_loop()


async def _run(settings: Settings, config: EngineConfig, listener: socket.socket) -> int:
    signals = _Signals()
    starting = asyncio.create_task(_start(settings, config))
    signalled = asyncio.create_task(signals.first.wait())
    await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    engine, tokenizer, http = await starting
    try:
        return await _answer(settings, http, engine, tokenizer, listener, signalled)
    finally:
        await engine.close()
        signalled.cancel()


async def _start(
    settings: Settings, config: EngineConfig
) -> tuple[EngineHandle, Tokenizer, ServerConfig]:
    """Start the engine and, meanwhile, load the tokenizer and the application's modules."""
    began = time.monotonic()
    model = config.model
    engine_task = asyncio.create_task(_start_engine(config))
    tokenizer_task = asyncio.create_task(
        asyncio.to_thread(
            load_tokenizer,
            settings.tokenizer or model.model,
            revision=model.revision if settings.tokenizer is None else None,
            trust_remote_code=model.trust_remote_code,
        )
    )
    tasks = (engine_task, tokenizer_task)
    try:
        # Slow to import, and not needed before the engine is ready.
        await asyncio.to_thread(importlib.import_module, "server.app")
        http = await asyncio.to_thread(server_config, settings, config)
        http = structs.replace(http, max_connections=raise_file_limit())
        engine, tokenizer = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not engine_task.cancelled() and engine_task.exception() is None:
            await engine_task.result().close()
        raise
    adopt_library_lines()
    gc.collect()
    gc.freeze()  # a collection would look through the tokenizer's vocabulary for 0.3 s, mid-stream
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)
    logger.info("engine and tokenizer ready after %.1f s", time.monotonic() - began)
    return engine, tokenizer, http


async def _start_engine(config: EngineConfig) -> EngineHandle:
    """Start the engine, and show how far it is."""
    with ProgressBar() as bar:
        ticking = asyncio.create_task(bar.tick())
        try:
            return await EngineClient.start(config, bar)
        finally:
            ticking.cancel()


async def _answer(
    settings: Settings,
    http: ServerConfig,
    engine: EngineHandle,
    tokenizer: Tokenizer,
    listener: socket.socket,
    signalled: asyncio.Task[bool],
) -> int:
    """Answer until a signal or the engine's end; returns the exit status."""
    from server.app import create_app  # imported while the engine started

    app = create_app(engine, tokenizer, http)
    context: Context = app.state.context
    server = _http_server(settings, app, context)
    where, info = address(settings, listener), engine.info
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    lost = asyncio.create_task(engine_lost(engine))
    for line in summary(http, info, where):
        logger.info("%s", line)
    await asyncio.wait({serving, lost, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        logger.info("shutting down: at most %g s for open requests", settings.shutdown_timeout)
        if not await context.lifecycle.drain(settings.shutdown_timeout):
            context.admission.fail_all(ShutdownError())
    elif lost.done():
        context.admission.fail_all(EngineDeadError(lost.result()))
    lost.cancel()
    server.should_exit = True
    try:
        await serving
    except OSError as error:  # taken by another between our bind and now
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from None
    return 0 if signalled.done() else EXIT_LOST


def summary(http: ServerConfig, info: EngineInfo, where: str) -> list[str]:
    """What the server is, once it has started."""
    num_tokens = info.num_blocks * info.block_size
    return [
        f"tailrace {VERSION} serves {http.model_names[0]} in {info.dtype} on {info.device}",
        f"KV cache of {num_tokens:,} tokens: {num_tokens / info.max_model_len:.1f} times the "
        f"context of {info.max_model_len:,}; at most {info.max_rows} choices at once",
        f"sampler: {info.sampler}",
        f"API at {where}/v1, its description at {where}/docs",
    ]


def _http_server(settings: Settings, app: ASGIApp, context: Context) -> HttpServer:
    return make_server(
        app,
        context.connections,
        header_timeout_s=settings.header_timeout,
        root_path=settings.root_path,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        ssl_ca_certs=str(settings.ssl_ca_certs) if settings.ssl_ca_certs else None,
        ssl_cert_reqs=settings.ssl_cert_reqs,
    )


async def engine_lost(engine: EngineHandle) -> str:
    """Wait until the engine has been unable to serve for `ENGINE_LOST_S`; returns why."""
    since: float | None = None
    while True:
        reason, now = engine.failure(), time.monotonic()
        if reason is None:
            since = None
        elif since is None:
            since = now
            logger.error("engine lost: %s; ending in %g s", reason, ENGINE_LOST_S)
        elif now - since >= ENGINE_LOST_S:
            return reason
        await asyncio.sleep(0.2)
