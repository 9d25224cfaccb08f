"""Runs commands between two steps, in the order they came. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.contracts.control import (
    AbortRequests,
    Command,
    ControlReply,
    ControlRequest,
    EngineState,
    LoadAdapter,
    Pause,
    Resume,
    UnloadAdapter,
)
from engine.control.follower import NOTHING, CommandFollower, Followed
from engine.control.held_engine import HeldEngine
from engine.errors import ControlError


class CommandQueue:
    """The commands of all frontends.

    Args:
        reply: called with the frontend and the end of each of its commands.
    """

    def __init__(self, engine: HeldEngine, reply: Callable[[bytes, ControlReply], None]) -> None:
        self._engine = engine
        self._reply = reply
        self._waiting: deque[tuple[bytes, ControlRequest]] = deque()
        self._has_begun = self._waits_for_requests = False
        self._follower = CommandFollower(engine)

    @property
    def state(self) -> EngineState:
        """What holds the engine."""
        return self._follower.state

    def submit(self, frontend: bytes, request: ControlRequest) -> None:
        """Take a command.

        Aborts and what concerns adapters run at once, and a `Resume` ends a pause that still waits
        for requests to end.
        """
        command = request.command
        if isinstance(command, AbortRequests):
            count = self._engine.abort_named(command.names)
            self._end(frontend, request, followed=Followed(count))
        elif isinstance(command, Resume) and self._waits_for_requests:
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
            self._follower.change(adapters=adapters.named)
            self._end(frontend, request, error)

        if isinstance(command, LoadAdapter):
            adapters.load(command.name, command.source, replaces=command.replaces, done=done)
            return
        try:
            adapters.unload(command.name)
        except ControlError as error:
            done(error)
        else:
            done(None)

    def _give_up_pause(self) -> None:
        frontend, request = self._waiting.popleft()
        self._has_begun = self._waits_for_requests = False
        self._follower.change(is_paused=False, refuses=False)
        self._hold_or_release()
        error = ControlError("the engine was resumed before all requests had ended", "resumed")
        self._end(frontend, request, error)

    @property
    def is_due(self) -> bool:
        """Whether `run_due` has anything to do."""
        if not self._waiting:
            return False
        return not self._has_begun or self._is_ready

    def run_due(self) -> None:
        """Begin or run the commands that are due; steps bring about what the others wait for."""
        while self.is_due:
            frontend, request = self._waiting[0]
            if not self._has_begun:
                self._has_begun = True
                self._begin(request.command)
            else:
                self._waiting.popleft()
                self._has_begun = self._waits_for_requests = False
                self._run(frontend, request)

    def _begin(self, command: Command) -> None:
        """Bring the engine to where a command can run.

        Where the engine is held already, no request can end, and a pause waits for none: what
        ends the hold would have to wait behind it.
        """
        if not isinstance(command, Pause):
            self._engine.hold()
            return
        self._waits_for_requests = command.mode == "wait" and not self.state.is_held
        self._follower.enter_pause(command)
        if command.mode == "abort":
            self._engine.abort_named(None)
        if self._waits_for_requests:
            self._engine.park()
        else:
            self._engine.hold()

    @property
    def _is_ready(self) -> bool:
        if self._waits_for_requests and self._engine.num_ending:
            return False
        return self._engine.is_quiet

    def _run(self, frontend: bytes, request: ControlRequest) -> None:
        error, followed = None, NOTHING
        try:
            followed = self._follower.follow(request.command)
        except ControlError as refusal:
            error = refusal
        self._hold_or_release()
        self._end(frontend, request, error, followed)

    def _hold_or_release(self) -> None:
        """Let the engine plan steps if nothing holds it."""
        if self.state.is_held:
            self._engine.hold()
        else:
            self._engine.release()

    def _end(
        self,
        frontend: bytes,
        request: ControlRequest,
        error: ControlError | None = None,
        followed: Followed = NOTHING,
    ) -> None:
        reply = ControlReply(
            handle=request.handle,
            state=self.state,
            error=None if error is None else str(error),
            code=None if error is None else error.code,
            count=followed.count,
            weights=followed.weights,
        )
        self._reply(frontend, reply)
