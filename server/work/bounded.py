"""A thread for Python code that may run for too long: who waits for it sets a bound."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from server.errors import overloaded

T = TypeVar("T")

MAX_WAITING = 4096
_PIPE_BYTES = 4096


class InterruptedCallError(BaseException):
    """Raised inside a call that took too long, to end it; not to be caught by what it calls."""


class _Call:
    """One call on its way through the thread.

    Attributes:
        began: when it began, by the monotonic clock; None while it waits.
        may_be_interrupted: who interrupts it looks whether it still runs, or has found that.
    """

    __slots__ = ("args", "began", "function", "future", "loop", "may_be_interrupted", "timer")

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
        self.began: float | None = None
        self.may_be_interrupted = False
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, result: Any, error: Exception | None) -> None:
        """Tell who waits, if somebody still does; on the event loop."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)

    def bound(self, limit_s: float) -> None:
        """Give the call up where it has run for so long, else look again when it would have."""
        if self.future.done():
            return
        left_s = limit_s if self.began is None else self.began + limit_s - time.monotonic()
        if left_s <= 0:
            self.future.set_exception(TimeoutError())
        else:
            self.timer = self.loop.call_later(left_s, self.bound, limit_s)


class BoundedThread:
    """Runs calls one after another on one thread, and interrupts those that take too long.

    Python can only interrupt Python code: one long operation of a C function is waited for. Short
    calls are many, so the way there and back is short: little is touched on it, since what one
    thread has touched is slow for another.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[_Call] = deque()
        self._running: _Call | None = None
        self._thread_id = 0
        self._wake = -1  # the writing end of the pipe; none before the first call and after `close`

    async def run(self, timeout_s: float, function: Callable[..., T], *args: Any) -> T:
        """The call's result.

        Raises:
            TimeoutError: the call took longer, from its own start.
            ApiError: 429, too many calls wait.
        """
        if len(self._calls) >= MAX_WAITING:
            raise overloaded(f"{MAX_WAITING} requests wait for the thread {self._name}")
        if self._wake < 0:
            self._start()
        loop = asyncio.get_running_loop()
        call = _Call(function, args, loop)
        call.bound(timeout_s)
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._wake, b"\0")
        try:
            result: T = await call.future
        except (asyncio.CancelledError, TimeoutError):
            self._interrupt(call)  # the client's going away, too
            raise
        finally:
            if call.timer is not None:
                call.timer.cancel()
        return result

    def _start(self) -> None:
        woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        thread = threading.Thread(target=self._work, args=(woken,), name=self._name, daemon=True)
        thread.start()

    def close(self) -> None:
        """End the thread after the calls that wait for it."""
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _work(self, woken: int) -> None:
        """Run calls as they come; `woken` is the pipe's reading end."""
        self._thread_id = threading.get_ident()
        while os.read(woken, _PIPE_BYTES):
            while self._calls:
                self._execute(self._calls.popleft())
        os.close(woken)

    def _execute(self, call: _Call) -> None:
        """Run a call; what interrupts it is raised between the two times that `_running` is set,
        or in the loop after."""
        result, error = None, None
        try:
            self._running = call
            if not call.future.done():  # somebody waits for it
                call.began = time.monotonic()
                try:
                    result = call.function(*call.args)
                except Exception as raised:
                    error = raised
            self._running = None
            while call.may_be_interrupted:
                pass
        except InterruptedCallError:
            self._running = None
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            call.loop.call_soon_threadsafe(call.answer, result, error)

    def _interrupt(self, call: _Call) -> None:
        """Let Python raise in the thread if it is at this call."""
        call.may_be_interrupted = True  # from here on the thread does not leave it
        if self._running is not call:
            call.may_be_interrupted = False
            return
        thread_id = ctypes.c_ulong(self._thread_id)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            thread_id, ctypes.py_object(InterruptedCallError)
        )
