"""Runs commands between two steps, in the order they came. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import structs

from engine.adapters.book import AdapterBook
from engine.contracts.control import (
    AbortRequests,
    AnyCommand,
    Command,
    ControlReply,
    ControlRequest,
    EngineState,
    FlushPrefixes,
    LoadAdapter,
    Pause,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
)
from engine.errors import ControlError


class HeldEngine(Protocol):
    """What commands ask of the engine; see `engine.engine.Engine`."""

    @property
    def adapters(self) -> AdapterBook | None: ...

    @property
    def num_ending(self) -> int: ...

    @property
    def num_holding(self) -> int: ...

    @property
    def is_quiet(self) -> bool: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def park(self) -> None: ...

    def abort_named(self, names: tuple[str, ...] | None) -> int: ...

    def forget_prefixes(self, *, restarts: bool) -> None: ...


class CommandQueue:
    """The commands of all frontends, and what they made of the engine.

    Args:
        reply: called with the frontend and the end of each of its commands.

    Attributes:
        state: what holds the engine.
    """

    def __init__(self, engine: HeldEngine, reply: Callable[[bytes, ControlReply], None]) -> None:
        self._engine = engine
        self._reply = reply
        self._waiting: deque[tuple[bytes, ControlRequest]] = deque()
        self._has_begun = False
        self.state = EngineState(adapters=engine.adapters.named if engine.adapters else ())

    def submit(self, frontend: bytes, request: ControlRequest) -> None:
        """Take a command.

        Aborts and what concerns adapters run at once, and a `Resume` ends a pause that still waits
        for requests to end.
        """
        command = request.command
        if isinstance(command, AbortRequests):
            self._end(frontend, request, count=self._engine.abort_named(command.names))
        elif isinstance(command, Resume) and self._is_waiting_for_requests:
            self._give_up_pause()
            self._end(frontend, request)
        elif isinstance(command, LoadAdapter | UnloadAdapter):
            self._change_adapters(frontend, request, command)
        else:
            self._waiting.append((frontend, request))

    def _change_adapters(
        self, frontend: bytes, request: ControlRequest, command: LoadAdapter | UnloadAdapter
    ) -> None:
        """Load or unload an adapter while steps go on."""
        adapters = self._engine.adapters
        if adapters is None:
            words = "this server was started without --enable-lora"
            self._end(frontend, request, ControlError(words, "no_adapters"))
            return

        def done(error: ControlError | None) -> None:
            self.state = structs.replace(self.state, adapters=adapters.named)
            self._end(frontend, request, error)

        if isinstance(command, LoadAdapter):
            adapters.load(command.name, command.path, replaces=command.replaces, done=done)
            return
        try:
            adapters.unload(command.name)
        except ControlError as error:
            done(error)
        else:
            done(None)

    @property
    def _is_waiting_for_requests(self) -> bool:
        return self._has_begun and _waits(self._waiting[0][1].command)

    def _give_up_pause(self) -> None:
        frontend, request = self._waiting.popleft()
        self._has_begun = False
        self.state = structs.replace(self.state, is_paused=False, refuses=False)
        self._engine.release()
        error = ControlError("the engine was resumed before all requests had ended", "resumed")
        self._end(frontend, request, error)

    @property
    def is_due(self) -> bool:
        """Whether `run_due` has anything to do."""
        if not self._waiting:
            return False
        return not self._has_begun or self._is_ready(self._waiting[0][1].command)

    def run_due(self) -> None:
        """Begin or run the commands that are due; steps bring about what the others wait for."""
        while self.is_due:
            frontend, request = self._waiting[0]
            if not self._has_begun:
                self._has_begun = True
                self._begin(request.command)
            else:
                self._waiting.popleft()
                self._has_begun = False
                self._run(frontend, request)

    def _begin(self, command: Command) -> None:
        """Bring the engine to where a command can run."""
        if not isinstance(command, Pause):
            self._engine.hold()
            return
        self.state = structs.replace(self.state, is_paused=True, refuses=command.refuses)
        if command.mode == "abort":
            self._engine.abort_named(None)
        if command.mode == "wait":
            self._engine.park()
        else:
            self._engine.hold()

    def _is_ready(self, command: Command) -> bool:
        if _waits(command) and self._engine.num_ending:
            return False
        return self._engine.is_quiet

    def _run(self, frontend: bytes, request: ControlRequest) -> None:
        error, count = None, 0
        try:
            count = self._follow(request.command)
        except ControlError as refusal:
            error = refusal
        if self.state.is_held:
            self._engine.hold()
        else:
            self._engine.release()
        self._end(frontend, request, error, count)

    def _follow(self, command: AnyCommand) -> int:
        """Follow a command, with no step in flight; returns the count of its reply."""
        match command:
            case Pause():
                if command.forgets:
                    self._engine.forget_prefixes(restarts=True)
                return self._engine.num_ending
            case Resume():
                self._resume()
            case FlushPrefixes():
                self._flush(command)
            case Sleep() | WakeUp():
                raise ControlError("this engine's memory cannot be given back", "no_sleep")
            case AbortRequests() | LoadAdapter() | UnloadAdapter():
                raise AssertionError("they wait for nothing")
        return 0

    def _resume(self) -> None:
        if not self.state.is_paused:
            raise ControlError("the engine is not paused", "not_paused")
        self.state = structs.replace(self.state, is_paused=False, refuses=False)

    def _flush(self, command: FlushPrefixes) -> None:
        if not command.restarts and (count := self._engine.num_holding):
            words = f"{count} choices or scoring requests hold blocks: end them, or restart them"
            raise ControlError(words, "busy")
        self._engine.forget_prefixes(restarts=command.restarts)

    def _end(
        self,
        frontend: bytes,
        request: ControlRequest,
        error: ControlError | None = None,
        count: int = 0,
    ) -> None:
        reply = ControlReply(
            handle=request.handle,
            state=self.state,
            error=None if error is None else str(error),
            code=None if error is None else error.code,
            count=count,
        )
        self._reply(frontend, reply)


def _waits(command: Command) -> bool:
    """Whether a command waits until requests have ended."""
    return isinstance(command, Pause) and command.mode == "wait"
