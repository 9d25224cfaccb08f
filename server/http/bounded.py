"""A thread for Python code that may run for too long: who waits for it sets a bound."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class InterruptedCallError(BaseException):
    """Raised inside a call that took too long, to end it; not to be caught by what it calls."""


class _Call:
    """One call on its way through the thread."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.interrupted = False


class BoundedThread:
    """Runs calls one after another on one thread, and interrupts those that take too long.

    Python can only interrupt Python code: one long operation of a C function is waited for.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._running: tuple[_Call, int] | None = None

    async def run(self, timeout_s: float, function: Callable[..., T], *args: Any) -> T:
        """The call's result.

        Raises:
            TimeoutError: the call, with those before it, took longer.
        """
        call = _Call(function, args)
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._execute, call)
        try:
            async with asyncio.timeout(timeout_s):
                result: T = await asyncio.shield(future)
        except BaseException:  # the client's going away, too
            future.cancel()
            future.add_done_callback(_collect)
            self._interrupt(call)
            raise
        return result

    def close(self) -> None:
        """End the thread behind the calls that wait for it."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _execute(self, call: _Call) -> Any:
        """Run a call; the exception that interrupts it is raised between here and the end."""
        try:
            with self._lock:
                self._running = (call, threading.get_ident())
            try:
                result = call.function(*call.args)
            except Exception:
                self._leave(call)
                raise
            self._leave(call)
        except InterruptedCallError:
            with self._lock:
                self._running = None
            return None
        return result

    def _leave(self, call: _Call) -> None:
        """Let nobody interrupt the call any more, and wait for the exception if somebody has."""
        with self._lock:
            self._running = None
        while call.interrupted:
            pass

    def _interrupt(self, call: _Call) -> None:
        """Let Python raise in the thread if it is at this call."""
        with self._lock:
            if self._running is None or self._running[0] is not call:
                return
            call.interrupted = True
            thread_id = ctypes.c_ulong(self._running[1])
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                thread_id, ctypes.py_object(InterruptedCallError)
            )


def _collect(future: asyncio.Future[Any]) -> None:
    """Look at a result that nobody waits for, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()
