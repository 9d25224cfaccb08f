"""Processes for work that nothing here could interrupt: each call is bounded in time and memory.

Parsing JSON, rendering a template and compiling a grammar may spend seconds inside one operation of
C or Rust, which holds Python's lock and hears no signal. In a process of its own such work holds up
nobody, and can be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import io
import multiprocessing
import os
import pickle
import queue
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from engine.awake import AwakeClock
from server.errors import overloaded
from server.work.child import follow_parent

T = TypeVar("T")

START_S = 120.0
"""A process that is not ready by then is given up."""
MEMORY_BYTES = 4 << 30
"""What a call may take beyond what its process has at the start."""
MAX_WAITING = 1024
"""Calls that wait for a process."""
NICENESS = 5
"""Such work yields to the event loop and the engine where they want the same processor."""
LOOK_S = 0.25
LARGE_BYTES = 64 << 10
"""Longer bytes are sent apart from the pickle."""


class CallEndedError(Exception):
    """A process ended within a call: killed by the system, or by memory that it could not have."""


class CallNotBegunError(Exception):
    """No process could be started for a call: it says nothing of what was to be called."""


class Preparation(NamedTuple):
    """What a process makes ready before its first call: `prepare` is called with `args` there."""

    prepare: Callable[..., object]
    args: tuple[Any, ...] = ()


class BoundedProcess:
    """One process; a thread at a time calls it."""

    def __init__(self, setup: Preparation | None, memory_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, memory_bytes), daemon=True)
        self._process.start()
        theirs.close()
        self._is_closed = False
        try:
            self._connection.send(setup)
            self._answer(START_S)
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it can be called again."""
        return not self._is_closed and self._process.is_alive()

    def call(self, limit_s: float, function: Callable[..., T], *args: Any) -> T:
        """What the function returns there, or raises; both are sent as pickles, but large bytes
        among the arguments as they are: a copy of them would hold Python's lock.

        Raises:
            TimeoutError: it took longer, and was killed; time of this process being stopped does
                not count.
            MemoryError: it took too much. CallEndedError: the process ended.
        """
        try:
            _send_call(self._connection, function, args)
            result, error = self._answer(limit_s)
        except (EOFError, ConnectionError):
            self.close()
            raise CallEndedError from None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or its traceback's frame, which has the arguments, would keep itself
        returned: T = result
        return returned

    def _answer(self, limit_s: float) -> tuple[Any, Exception | None]:
        awake = AwakeClock()
        while not self._connection.poll(min(LOOK_S, limit_s)):
            awake.tick()
            if awake.seconds >= limit_s:
                self.close()
                raise TimeoutError
        answer: tuple[Any, Exception | None] = self._connection.recv()
        return answer

    def kill(self) -> None:
        """End it, whatever it does; a thread that calls it hears so, and closes it."""
        self._process.kill()

    def close(self) -> None:
        """End it and give back what it held; no thread calls it any more."""
        self._process.kill()
        self._process.join()
        self._connection.close()
        self._is_closed = True


class ProcessPool:
    """Calls functions in some processes, which start when they are needed, or one of them ahead.

    Args:
        num_processes: so many calls run at once; one that takes long need not hold up the others.
        setup: says what each process makes ready; asked with the first.
        max_waiting: calls that wait for a process, or are at work.
    """

    def __init__(
        self,
        name: str,
        num_processes: int,
        *,
        setup: Callable[[], Preparation] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._max_waiting = max_waiting
        self._name = name
        self._setup = setup
        self._memory_bytes = memory_bytes
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix=name)
        self._starter = ThreadPoolExecutor(1, thread_name_prefix=f"{name}, starting")
        self._ahead: Future[None] | None = None
        self._processes: list[BoundedProcess] = []
        self._idle: queue.LifoQueue[BoundedProcess] = queue.LifoQueue()
        self._num_waiting = 0
        self._is_closed = False

    def start_ahead(self) -> None:
        """Start a process now, in a thread: the first call would wait seconds for its imports."""
        self._ahead = self._starter.submit(self._start_idle)

    async def run(self, limit_s: float, function: Callable[..., T], *args: Any) -> T:
        """Call a function as `BoundedProcess.call` does; the limit counts from the call's start.

        Raises:
            ApiError: 429, too many calls wait.
            CallNotBegunError: no process could be started; the next call tries again.
        """
        if self._num_waiting >= self._max_waiting:
            raise overloaded(f"{self._max_waiting} requests wait for {self._name}")
        loop = asyncio.get_running_loop()
        self._num_waiting += 1
        try:
            return await loop.run_in_executor(self._threads, self._call, limit_s, function, *args)
        finally:
            self._num_waiting -= 1

    def _call(self, limit_s: float, function: Callable[..., T], *args: Any) -> T:
        """In a thread: call a process that nobody else calls."""
        process = self._taken()
        try:
            return process.call(limit_s, function, *args)
        finally:
            if process.is_alive:
                self._idle.put(process)
            else:
                self._processes.remove(process)

    def _taken(self) -> BoundedProcess:
        """A process that nobody else calls."""
        if self._ahead is not None and not self._ahead.done() and self._idle.empty():
            wait([self._ahead])  # it is there before another would be
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._start()

    def _start_idle(self) -> None:
        with contextlib.suppress(CallNotBegunError):  # a call tries again, and says so
            self._idle.put(self._start())

    def _start(self) -> BoundedProcess:
        setup = None if self._setup is None else self._setup()
        try:
            process = BoundedProcess(setup, self._memory_bytes)
        except (OSError, EOFError) as error:  # a start that takes too long among them
            words = f"no process for {self._name} could be started: {error!r}"
            raise CallNotBegunError(words) from error
        self._processes.append(process)
        if self._is_closed:
            process.kill()
        return process

    def close(self) -> None:
        """End the processes and threads."""
        self._is_closed = True
        for threads in (self._threads, self._starter):
            threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()


def trim_memory() -> None:
    """Give free memory back to the system, where the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _send_call(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Send a pickle that says how many buffers follow, and these; writing lets go of the lock."""
    buffers: list[pickle.PickleBuffer] = []
    wrapped = [
        pickle.PickleBuffer(arg)
        if isinstance(arg, bytes | bytearray) and len(arg) > LARGE_BYTES
        else arg
        for arg in args
    ]
    call = pickle.dumps((function, wrapped), protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(pickle.dumps(len(buffers)) + call)
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


# -- in the process ---------------------------------------------------------------------------


def _serve(connection: Connection, memory_bytes: int) -> None:
    """Call what comes, until the parent is gone."""
    follow_parent()
    os.nice(NICENESS)
    gc.disable()  # collections would look through millions of parsed values, again and again
    with contextlib.suppress(EOFError):
        setup = connection.recv()
        if setup is not None:
            setup.prepare(*setup.args)
        _bound_memory(memory_bytes)
        connection.send((None, None))
        while True:
            function, args = _receive_call(connection)
            connection.send(_called(function, args))
            del function, args
            _tidy()


def _receive_call(connection: Connection) -> tuple[Callable[..., Any], list[Any]]:
    """What `_send_call` sent; each buffer is bytes, whatever it was."""
    sent = io.BytesIO(connection.recv_bytes())
    buffers = [connection.recv_bytes() for _ in range(pickle.load(sent))]
    call: tuple[Callable[..., Any], list[Any]] = pickle.load(sent, buffers=buffers)
    return call


def _called(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Exception | None]:
    try:
        return function(*args), None
    except MemoryError:
        return None, MemoryError()
    except Exception as error:
        error.__traceback__ = error.__context__ = None  # they hold all that was parsed
        return None, error


def _bound_memory(memory_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        base = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = base + memory_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _tidy() -> None:
    """Give back what a call took. What it imported or cached stays, and is looked through once."""
    gc.collect()
    gc.freeze()
    trim_memory()
