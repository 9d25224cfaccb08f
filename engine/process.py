"""The engine process: its start, its end and its ties to its parent; `engine.loop` serves.

Started as `python -m engine.process ADDRESS` with the configuration on standard input. It talks
to any number of frontends over one ROUTER socket at ADDRESS. Its standard output carries status
lines to the parent: `progress` while it starts, `ready`, a `beat` twice a second, and `failed`
before it ends by itself. It ignores SIGTERM and SIGINT, because the server drains requests first,
and ends when its standard input does, so that it cannot outlive a killed parent. A frontend that
ends or falls silent has its requests aborted, so that nothing runs or is queued for nobody.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from engine.config import ConfigError, EngineConfig
from engine.contracts.status import FOLDER_PREFIX, Beat, Failed, Progress, Ready, StatusPipe
from engine.errors import kind_and_line
from engine.logs import adopt_library_lines, configure_logging
from engine.loop import EngineLoop
from engine.parallel.processes import end_ranks
from engine.progress import on_progress, phase
from engine.startup.early import begin_early
from sampling.device.compile_workers import end_workers

logger = logging.getLogger("engine")

BEAT_S = 0.5
"""Seconds between heartbeats."""

SWITCH_S = 50e-6
"""Seconds after which the stepping thread gets the interpreter back. Python's own 5 ms are as long
as a step on a CPU."""

START_SWITCH_S = 1e-3
"""The same during the start, when a dozen threads compile kernels: at 50 us they do little but take
the interpreter from one another, at 5 ms whoever loads the model waits for them at every turn."""

EXIT_CONFIG, EXIT_HUNG, EXIT_FATAL = 2, 3, 4
"""Exit status after a configuration that cannot be served, a hung step, and any other error."""


def _follow_parent(address: str) -> None:
    """End the process as soon as standard input ends: nobody waits for the step in flight."""
    while os.read(0, 4096):
        pass
    _remove_socket(address)
    _exit(0)


def _remove_socket(address: str) -> None:
    """Leave nothing behind: a parent that was killed cannot remove the folder it made."""
    path = Path(address.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    if path.parent.name.startswith(FOLDER_PREFIX):
        shutil.rmtree(path.parent, ignore_errors=True)


def _watch(loop: EngineLoop, status: StatusPipe, limit_s: float) -> None:
    """Send heartbeats until a step takes too long, then end the process.

    Runs on a thread of its own: the stepping thread may wait inside CUDA, which releases the
    interpreter but cannot be interrupted.
    """
    while not loop.look():
        status.send(Beat())
        time.sleep(BEAT_S)
    _exit(_give_up(status, EXIT_HUNG, f"a step took over {limit_s:g} s"))


def _give_up(status: StatusPipe, code: int, reason: str) -> int:
    logger.error("the engine gives up: %s", reason)
    _fail(status, reason)
    return code


def _fail(status: StatusPipe, reason: str) -> None:
    """Tell the parent, which may kill this process at once, why it ends."""
    end_ranks()
    status.send(Failed(reason))


def _exit(code: int) -> None:
    """End at once: a normal exit would wait for the threads of a hung step."""
    end_ranks()
    sys.stderr.flush()
    os._exit(code)


def _import_torch(config: EngineConfig) -> None:
    """Import what a start takes: the parent is followed now.

    Modules make no garbage, and looking for it takes a tenth of the time.
    """
    gc.disable()
    from engine.startup.imports import import_config_class, modules_by_name

    with phase("importing"), modules_by_name():
        from engine.startup.device import begin_context

        begin_context(config)
        import_config_class(config.model.model)
        import engine.startup.build  # noqa: F401
    gc.freeze()
    gc.enable()


def main() -> int:
    """Run the engine process; returns the exit status, which tells the parent why it ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(START_SWITCH_S)
    status = StatusPipe()
    address = sys.argv[1]
    line = sys.stdin.buffer.readline()
    if not line:  # the parent is gone already
        _remove_socket(address)
        return 0
    config = msgspec.json.decode(line, type=EngineConfig)
    configure_logging(config.log_level, config.log_format, "engine", "sampling")
    threading.Thread(target=_follow_parent, args=(address,), daemon=True).start()
    on_progress(lambda phase, done, total: status.send(Progress(phase, done, total)))
    tokenizer = begin_early(config)
    try:
        _import_torch(config)
        from engine.startup.build import build_engine

        adopt_library_lines()

        def on_rank_lost(reason: str) -> None:
            _exit(_give_up(status, EXIT_FATAL, reason))

        engine = build_engine(config, on_rank_lost, tokenizer)
        loop = EngineLoop(config, address, engine)
        end_workers()
    except ConfigError as error:
        _fail(status, str(error))
        return EXIT_CONFIG
    except Exception:
        logger.exception("the engine could not be built")
        return EXIT_FATAL
    sys.setswitchinterval(SWITCH_S)
    status.send(Ready(engine.info))
    limit_s = config.step_timeout_s
    threading.Thread(target=_watch, args=(loop, status, limit_s), daemon=True).start()
    try:
        loop.run()
    except Exception as error:  # freeing tensors on a device that is lost would abort the process
        logger.exception("the engine cannot go on")
        _exit(_give_up(status, EXIT_FATAL, kind_and_line(error)))
    return 0


if __name__ == "__main__":
    _exit(main())
