"""A thread for Python code that may run for too long: who waits for it sets a bound."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_PIPE_BYTES = 4096


class InterruptedCallError(BaseException):
    """Raised inside a call that took too long, to end it; not to be caught by what it calls."""


class _Call:
    """One call on its way through the thread."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.function = function
        self.args = args
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.interrupted = False


class BoundedThread:
    """Runs calls one after another on one thread, and interrupts those that take too long.

    Python can only interrupt Python code: one long operation of a C function is waited for. Short
    calls are many, so the way there and back is short: a pipe wakes the thread in half the time
    that a queue takes, and calls that came meanwhile need no waking.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[_Call] = deque()
        self._lock = threading.Lock()
        self._running: tuple[_Call, int] | None = None
        self._wake = -1  # the writing end of the pipe; none before the first call and after `close`

    async def run(self, timeout_s: float, function: Callable[..., T], *args: Any) -> T:
        """The call's result.

        Raises:
            TimeoutError: the call, with those before it, took longer.
        """
        if self._wake < 0:
            self._start()
        loop = asyncio.get_running_loop()
        call = _Call(function, args, loop)
        timer = loop.call_later(timeout_s, _answer, call.future, None, TimeoutError())
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._wake, b"\0")
        try:
            result: T = await call.future
        except (asyncio.CancelledError, TimeoutError):
            self._interrupt(call)  # the client's going away, too
            raise
        finally:
            timer.cancel()
        return result

    def _start(self) -> None:
        woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        thread = threading.Thread(target=self._work, args=(woken,), name=self._name, daemon=True)
        thread.start()

    def close(self) -> None:
        """End the thread behind the calls that wait for it."""
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _work(self, woken: int) -> None:
        """Run calls as they come; `woken` is the pipe's reading end."""
        while os.read(woken, _PIPE_BYTES):
            while self._calls:
                call = self._calls.popleft()
                if not call.future.done():  # somebody waits for it
                    self._answer(call)
        os.close(woken)

    def _answer(self, call: _Call) -> None:
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
