"""Processes that compile Triton's kernels into its cache, begun before torch is imported.

A fifth of a compile holds the interpreter, and a server without a cache has over a hundred of them:
on threads they wait for one another, and whoever loads the model waits for them all. So one more
process imports what kernels are made of and forks into workers, each at the end of a socket, that
end when that closes. No torch is imported here, so that the start can begin with it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

MAX_WORKERS = 16
FEW_COMPILED = 100
"""Triton's cache holds a folder for each kernel and launcher; a server that has started has left
more than this."""
READY_S = 30.0
"""Seconds in which a worker must be ready for its first kernel; importing torch takes 3 to 8."""


class Job(NamedTuple):
    """A kernel to compile: what Triton's `ASTSource` and `compile` take.

    Attributes:
        module, name: where its function is.
        key: what Triton knows the function by. It puts globals of one name in the order of their
            modules' addresses, so that another process would have made another.
        target: backend, architecture, warp size.
    """

    module: str
    name: str
    key: str
    signature: dict[str, Any]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]
    target: tuple[str, Any, int]


class Workers:
    """The parent's side: workers that are begun when this is made.

    They end with this process, if not before.

    Args:
        module: what they import before the first kernel.
        count: how many they are; None is by the cores.
    """

    def __init__(self, module: str, count: int | None = None) -> None:
        count = count or min(MAX_WORKERS, os.cpu_count() or 1)
        pairs = [socket.socketpair() for _ in range(count)]
        theirs = [end.detach() for _, end in pairs]
        program = (
            f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
            "from sampling.device import compile_workers; compile_workers.main(sys.argv[1:])"
        )
        # They look at no GPU, and do nothing else that is worth threads.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-c", program, module, *map(str, theirs)),
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        for end in theirs:
            os.close(end)
        self._free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._all = [Connection(end.detach()) for end, _ in pairs]
        for connection in self._all:
            self._free.put(connection)

    def compile(self, job: Job) -> bool:
        """Leave a kernel and its launcher in Triton's cache; whether that went well."""
        try:
            connection = self._free.get(timeout=READY_S)
        except queue.Empty:
            return False
        try:
            connection.send(job)
            went_well = bool(connection.poll(READY_S) and connection.recv())
        except Exception:  # a worker that died, a constant that cannot be sent
            return False  # and is asked no more
        self._free.put(connection)
        return went_well

    def close(self) -> None:
        """End the workers."""
        for connection in self._all:
            connection.close()
        threading.Thread(target=self._process.wait, daemon=True).start()


_begun: Workers | None = None


def begin_workers(module: str) -> Workers:
    """The process's workers, begun now or before; see `Workers`."""
    global _begun
    if _begun is None:
        _begun = Workers(module)
    return _begun


def begun_workers() -> Workers | None:
    """The process's workers; None where they are not begun."""
    return _begun


def end_workers() -> None:
    """End the process's workers, if they are begun."""
    global _begun
    if _begun is not None:
        _begun.close()
        _begun = None


def is_cache_empty() -> bool:
    """Whether Triton's cache on disk is so empty that a start has most kernels to compile."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    folder = os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache"
    try:
        return len(os.listdir(folder)) < FEW_COMPILED
    except OSError:
        return True


# -- the workers' side ------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Import a module, and fork a worker for each file descriptor after its name."""
    importlib.import_module(arguments[0])
    importlib.import_module("triton.runtime.cache").triton_key()  # half a second, once
    numbers = [int(end) for end in arguments[1:]]
    for number in numbers:
        if os.fork() == 0:
            for other in numbers:
                if other != number:
                    with contextlib.suppress(OSError):
                        os.close(other)
            _serve(Connection(number))
            os._exit(0)
    for number in numbers:
        os.close(number)
    for _ in numbers:
        os.wait()


def _serve(connection: Connection) -> None:
    """Compile until the other end closes."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            job: Job = connection.recv()
            try:
                _compile(job)
            except Exception:  # whoever asked meets the error again
                connection.send(False)
            else:
                connection.send(True)


def _compile(job: Job) -> None:
    from triton import compiler
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher

    function: Any = importlib.import_module(job.module)
    for name in job.name.split("."):
        function = getattr(function, name)
    assert function.cache_key  # made once, and then held in `hash`
    function.hash = job.key
    source = compiler.ASTSource(function, job.signature, job.constants, job.attributes)
    kernel = compiler.compile(source, target=GPUTarget(*job.target), options=job.options)
    with contextlib.suppress(Exception):  # of other versions, or without a C compiler
        CudaLauncher(source, kernel.metadata)
