"""`tailrace serve`: bind, start the engine and its fronts, answer, drain, end.

One front answers in this process; several (`--api-server-count`) are processes of their own, which
this one supervises. Exit status: 0 after SIGTERM or SIGINT, 2 for a setting or model that cannot be
served, 1 when the engine was lost, or too many fronts. Every request that waits for a lost engine
fails; the process ends `ENGINE_LOST_S` after the loss was noticed, so that health checks see it and
whoever supervises restarts it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs
from prometheus_client import disable_created_metrics

from engine.client import EngineClient
from engine.config import ConfigError, EngineConfig
from engine.contracts.info import EngineInfo, ErrorStatement
from engine.parent import EngineProcess, make_folder
from engine.structured.without_torch import prepare_for_tokenizers
from engine.submission import EngineDeadError
from server.command.configure import engine_config, server_config
from server.command.fronts.front import Front, FrontConfig, new_loop
from server.command.fronts.front_lines import FrontStart
from server.command.fronts.supervisor import Fronts
from server.command.listen import address, bind
from server.command.logs import configure_server_logging, http_log_level, log_level
from server.command.models import check_models
from server.command.progress import ProgressBar
from server.command.settings import Settings
from server.config import ServerConfig
from server.fronts import FrontTable, make_table_file
from server.http.admission import ShutdownError
from server.http.connections import raise_file_limit
from server.version import VERSION

logger = logging.getLogger("tailrace")

EXIT_LOST = 1
ENGINE_LOST_S = 5.0
CORES_PER_FRONT, MAX_FRONTS = 4, 4
"""By default there is one front to so many cores, and at most so many."""


class StartedEngine(Protocol):
    """The engine as this process holds it: an `EngineClient` or an `EngineProcess`."""

    info: EngineInfo

    @property
    def has_ended(self) -> bool: ...

    def failure(self) -> str | None: ...

    async def close(self) -> None: ...


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
    # directory the user happens to be in.
    os.environ["PYTHONSAFEPATH"] = "1"
    disable_created_metrics()  # type: ignore[no-untyped-call]
    prepare_for_tokenizers(trust_remote_code=settings.trust_remote_code)
    config = engine_config(settings)
    check_models(config, settings.tokenizer)
    with bind(settings) as listener, asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_run(settings, config, listener))


def num_fronts(settings: Settings) -> int:
    """The number of fronts; where the settings say none, by the cores this process may use."""
    if settings.api_server_count is not None:
        return settings.api_server_count
    return min(max(len(os.sched_getaffinity(0)) // CORES_PER_FRONT, 1), MAX_FRONTS)


async def _run(settings: Settings, config: EngineConfig, listener: socket.socket) -> int:
    signals = _Signals()
    starting = asyncio.create_task(_start(settings, config, listener))
    signalled = asyncio.create_task(signals.first.wait())
    await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    engine, front = await starting
    try:
        return await _answer(settings, engine, front, listener, signalled)
    finally:
        await engine.close()
        signalled.cancel()


# -- the start --------------------------------------------------------------------------------


async def _start(
    settings: Settings, config: EngineConfig, listener: socket.socket
) -> tuple[StartedEngine, Front | Fronts]:
    """Start the engine and what answers over it, both at once."""
    began = time.monotonic()
    count = num_fronts(settings)
    folder = make_folder() if count > 1 else ""
    engine_task = asyncio.create_task(_start_engine(config, folder))
    front: Front | Fronts | None = None
    try:
        http = await asyncio.to_thread(server_config, settings, config)
        http = structs.replace(http, max_connections=raise_file_limit(), created=int(time.time()))
        http = _sharing_responses(http, folder)
        front = _make_front(settings, _front_config(settings, config, http), listener, folder)
        engine, _ = await asyncio.gather(engine_task, front.load())
        await front.attach(engine)
    except BaseException:
        engine_task.cancel()
        await asyncio.gather(engine_task, return_exceptions=True)
        if front is not None:
            await front.close()
        if not engine_task.cancelled() and engine_task.exception() is None:
            await engine_task.result().close()
        raise
    logger.info("engine and tokenizer ready after %.1f s", time.monotonic() - began)
    for line in summary(http, engine.info, address(settings, listener)):
        logger.info("%s", line)
    return engine, front


def _sharing_responses(http: ServerConfig, folder: str) -> ServerConfig:
    """The same, where several fronts keep responses in one file of their folder, if in no other.

    Its name does not end as those of the files that fronts count in, which are read all.
    """
    store = http.response_store
    if not folder or store is None or store.path:
        return http
    path = str(Path(folder) / "responses.sqlite")
    return structs.replace(http, response_store=structs.replace(store, path=path))


async def _start_engine(config: EngineConfig, folder: str) -> Any:
    """Start the engine, and show how far it is: a client of it, or with a folder its process."""
    with ProgressBar() as bar:
        ticking = asyncio.create_task(bar.tick())
        try:
            if folder:
                return await EngineProcess.start(config, bar, folder)
            return await EngineClient.start(config, bar)
        finally:
            ticking.cancel()


def _front_config(settings: Settings, config: EngineConfig, http: ServerConfig) -> FrontConfig:
    own = settings.tokenizer is None
    return FrontConfig(
        http=http,
        tokenizer=settings.tokenizer or config.model.model,
        revision=config.model.revision if own else None,
        trust_remote_code=settings.trust_remote_code,
        server_options={
            "header_timeout_s": settings.header_timeout,
            "root_path": settings.root_path,
            "ssl_keyfile": _text(settings.ssl_keyfile),
            "ssl_certfile": _text(settings.ssl_certfile),
            "ssl_ca_certs": _text(settings.ssl_ca_certs),
            "ssl_cert_reqs": settings.ssl_cert_reqs,
        },
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _make_front(
    settings: Settings, front: FrontConfig, listener: socket.socket, folder: str
) -> Front | Fronts:
    """Make what answers: a front in this process, or with a folder several that it supervises."""
    if not folder:
        return Front(front, listener, FrontTable())
    count = num_fronts(settings)
    table_fd = make_table_file(count)
    starts = [
        FrontStart(
            front=front,
            index=index,
            num_fronts=count,
            listener_fd=listener.fileno(),
            table_fd=table_fd,
            log_level=log_level(settings),
            log_format=settings.log_format,
            http_log_level=http_log_level(settings),
        )
        for index in range(count)
    ]
    return Fronts(starts, listener, FrontTable(count, fd=table_fd), folder)


# -- the end ----------------------------------------------------------------------------------


async def _answer(
    settings: Settings,
    engine: StartedEngine,
    front: Front | Fronts,
    listener: socket.socket,
    signalled: asyncio.Task[bool],
) -> int:
    """Answer until a signal or the engine's end; returns the exit status."""
    where = address(settings, listener)
    ended = asyncio.create_task(front.ended())
    lost = asyncio.create_task(engine_lost(engine))
    await asyncio.wait({ended, lost, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        logger.info("shutting down: at most %g s for open requests", settings.shutdown_timeout)
        if not await front.drain(settings.shutdown_timeout):
            front.fail_all(ShutdownError())
    elif lost.done():
        front.fail_all(EngineDeadError(lost.result()))
    for task in (lost, ended):
        task.cancel()
    await asyncio.gather(lost, ended, return_exceptions=True)
    try:
        await front.close()
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
        *([] if info.quantization is None else [error_line(info.quantization)]),
        f"API at {where}/v1, its description at {where}/docs",
    ]


def error_line(error: ErrorStatement) -> str:
    """The statement of error in one line."""
    if error.mean_kl is None or error.max_logprob_gap is None:
        return f"quantization ({error.scheme}): its error is no number, logits are NaN or infinite"
    return (
        f"quantization ({error.scheme}): mean KL {error.mean_kl:.2g} nats, logprobs up to "
        f"{error.max_logprob_gap:.2g} off, against {error.reference} on {error.text}"
    )


async def engine_lost(engine: StartedEngine) -> str:
    """Wait until the engine has been unable to serve for `ENGINE_LOST_S`; returns why."""
    since: float | None = None
    while True:
        reason, now = engine.failure(), time.monotonic()
        if reason is None:
            if since is not None:
                logger.warning("the engine is back after %.1f s", now - since)
            since = None
        elif since is None:
            since = now
            unless = "" if engine.has_ended else ", unless it goes on"
            logger.error("engine lost: %s; ending in %g s%s", reason, ENGINE_LOST_S, unless)
        elif now - since >= ENGINE_LOST_S:
            return reason
        await asyncio.sleep(0.2)
