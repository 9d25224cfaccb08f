"""A thread for Python code that may run for too long: who waits for it sets a bound."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class InterruptedCallError(BaseException):
    """Raised inside a call that took too long, to end it; not to be caught by what it calls."""


class _Call:
    """One call on its way through the thread."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        self.function = function
        self.args = args
        self.future = future
        self.loop = future.get_loop()
        self.interrupted = False


class BoundedThread:
    """Runs calls one after another on one thread, and interrupts those that take too long.

    Python can only interrupt Python code: one long operation of a C function is waited for. The way
    there and back costs half of what an executor's does, since short calls are many.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._lock = threading.Lock()
        self._running: tuple[_Call, int] | None = None

    async def run(self, timeout_s: float, function: Callable[..., T], *args: Any) -> T:
        """The call's result.

        Raises:
            TimeoutError: the call, with those before it, took longer.
        """
        if self._thread.ident is None:
            self._thread.start()
        loop = asyncio.get_running_loop()
        call = _Call(function, args, loop.create_future())
        timer = loop.call_later(timeout_s, _answer, call.future, None, TimeoutError())
        self._calls.put(call)
        try:
            result: T = await call.future
        finally:
            timer.cancel()
            if call.future.cancelled() or isinstance(call.future.exception(), TimeoutError):
                self._interrupt(call)  # the client's going away, too
        return result

    def close(self) -> None:
        """End the thread behind the calls that wait for it."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.future.done():  # nobody waits for it
                continue
            result, error = None, None
            try:
                result = self._execute(call)
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                call.loop.call_soon_threadsafe(_answer, call.future, result, error)

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


def _answer(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """Tell who waits, if somebody still does."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
