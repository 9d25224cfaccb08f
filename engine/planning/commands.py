"""Runs commands between two steps, in the order they came. No torch."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import structs

from engine.adapters.registry import AdapterRegistry
from engine.contracts.control import (
    MEMORY_PARTS,
    AbortRequests,
    AnyCommand,
    Command,
    ControlReply,
    ControlRequest,
    DrafterState,
    EngineState,
    FlushPrefixes,
    LoadAdapter,
    MemoryPart,
    Pause,
    Resume,
    RunWeights,
    Sleep,
    UnloadAdapter,
    WakeUp,
)
from engine.contracts.weights import (
    AnyWeightCommand,
    BeginUpdate,
    EndGroup,
    FinishUpdate,
    InitGroup,
    ListWeights,
    SetVersion,
    UpdateReport,
    WeightList,
    WeightReply,
    WeightTarget,
    WeightUpdateError,
)
from engine.errors import ControlError


class HeldEngine(Protocol):
    """What commands ask of the engine; see `engine.engine.Engine`."""

    @property
    def adapters(self) -> AdapterRegistry | None: ...

    @property
    def num_ending(self) -> int: ...

    @property
    def num_holding(self) -> int: ...

    @property
    def is_quiet(self) -> bool: ...

    @property
    def has_drafter_weights(self) -> bool: ...

    def switch_drafts(self, *, off: bool) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def park(self) -> None: ...

    def abort_named(self, names: tuple[str, ...] | None) -> int: ...

    def forget_prefixes(self, *, restarts: bool) -> None: ...

    def give_back(self, parts: Sequence[MemoryPart], *, keeps_weights: bool) -> None: ...

    def take_again(self, parts: Sequence[MemoryPart]) -> None: ...

    def run_weights(self, command: AnyWeightCommand) -> WeightReply: ...

    def change_weights(self, version: str, num_updates: int) -> None: ...

    def rename_weights(self, version: str) -> None: ...


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
        self._weights_reply: WeightReply = None
        self._target: WeightTarget = "model"
        self._num_lacking = 0
        self.state = EngineState(
            adapters=engine.adapters.named if engine.adapters else (),
            drafter="current" if engine.has_drafter_weights else "none",
        )

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
            adapters.load(command.name, command.source, replaces=command.replaces, done=done)
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
        weights, self._weights_reply = self._weights_reply, None
        if self.state.is_held:
            self._engine.hold()
        else:
            self._engine.release()
        self._end(frontend, request, error, count, weights)

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
            case Sleep():
                self._sleep(command)
            case WakeUp():
                self._wake(command)
            case RunWeights():
                self._weights_reply = self._run_weights(command.weights)
            case AbortRequests() | LoadAdapter() | UnloadAdapter():
                raise AssertionError("they wait for nothing")
        return 0

    def _resume(self) -> None:
        if not self.state.is_paused:
            raise ControlError("the engine is not paused", "not_paused")
        self._set_state(is_paused=False)

    def _set_state(self, **changes: Any) -> None:
        """Change the state; an engine that nothing holds refuses nothing."""
        state = structs.replace(self.state, **changes)
        self.state = structs.replace(state, refuses=state.refuses and state.is_held)

    def _flush(self, command: FlushPrefixes) -> None:
        if not command.restarts and (count := self._engine.num_holding):
            words = f"{count} choices or scoring requests hold blocks: end them, or restart them"
            raise ControlError(words, "busy")
        self._engine.forget_prefixes(restarts=command.restarts)

    # -- memory -----------------------------------------------------------------------------

    def _sleep(self, command: Sleep) -> None:
        if not self.state.is_paused and (count := self._engine.num_ending):
            words = f"{count} choices or scoring requests have not ended: pause the engine first"
            raise ControlError(words, "busy")
        parts = [part for part in command.parts if part not in self.state.asleep]
        if "weights" in parts and not command.keeps_weights:
            weights = self._engine.run_weights(ListWeights())
            assert isinstance(weights, WeightList)
            self._num_lacking = len(weights.weights)
        if "kv_cache" in parts:
            self._engine.forget_prefixes(restarts=True)
        self._engine.give_back(parts, keeps_weights=command.keeps_weights)
        asleep = {*self.state.asleep, *parts}
        self.state = structs.replace(
            self.state,
            refuses=self.state.refuses or not self.state.is_paused,
            asleep=tuple(part for part in MEMORY_PARTS if part in asleep),
            lacks_weights=self._num_lacking > 0,
        )

    def _wake(self, command: WakeUp) -> None:
        state = self.state
        parts = [part for part in state.asleep if part in command.parts]
        self._engine.take_again(parts)
        asleep = tuple(part for part in state.asleep if part not in parts)
        goes_on = command.resumes and not asleep
        self._set_state(asleep=asleep, is_paused=state.is_paused and not goes_on)

    # -- weights ----------------------------------------------------------------------------

    def _run_weights(self, command: AnyWeightCommand) -> WeightReply:
        if isinstance(command, SetVersion):
            self._check_version(command.version)
            self._engine.rename_weights(command.version)
            self.state = structs.replace(self.state, weight_version=command.version)
            return None
        if "weights" in self.state.asleep and not isinstance(command, InitGroup | EndGroup):
            raise ControlError("the weights are asleep: wake them up first", "asleep")
        if isinstance(command, FinishUpdate):
            self._check_finish(command)
        if isinstance(command, BeginUpdate):
            self._target = command.target
        reply = self._engine.run_weights(command)
        if isinstance(reply, UpdateReport) and isinstance(command, FinishUpdate):
            self._enter_update(command, reply)
        return reply

    def _check_finish(self, command: FinishUpdate) -> None:
        if command.version is not None:
            self._check_version(command.version)
        if command.drafter == "off" and not self._engine.has_drafter_weights:
            raise WeightUpdateError("there is no drafter with weights to switch off", "no_drafter")

    def _enter_update(self, command: FinishUpdate, report: UpdateReport) -> None:
        """Let requests, prefixes and replies know that weights were written.

        The keys of a drafter are in the blocks of the model's, and drafts decide which tokens a
        seed draws: an update of the drafter alone has all consequences but another version.
        """
        num_updates, version = self.state.num_updates + 1, self.state.weight_version
        if self._target == "model":
            version = str(num_updates) if command.version is None else command.version
            self._num_lacking = max(0, self._num_lacking - report.num_weights)
        drafter = self._drafter_after(command, report)
        self._engine.switch_drafts(off=drafter == "off")
        self._engine.change_weights(version, num_updates)
        self._set_state(
            weight_version=version,
            num_updates=num_updates,
            last_update=report,
            weight_tag=secrets.token_hex(8),
            lacks_weights=self._num_lacking > 0,
            drafter=drafter,
        )

    def _drafter_after(self, command: FinishUpdate, report: UpdateReport) -> DrafterState:
        if not self._engine.has_drafter_weights:
            return "none"
        if report.has_draft:
            return "current"
        is_off = command.drafter == "off" or self.state.drafter == "off"
        return "off" if is_off else "stale"

    def _check_version(self, version: str) -> None:
        """Refuse a number below the number that the weights have."""
        now = self.state.weight_version
        if version.isdecimal() and now.isdecimal() and int(version) < int(now):
            raise WeightUpdateError(
                f"weight version {version} is before {now}, the present one", "version_backwards"
            )

    def _end(
        self,
        frontend: bytes,
        request: ControlRequest,
        error: ControlError | None = None,
        count: int = 0,
        weights: WeightReply = None,
    ) -> None:
        reply = ControlReply(
            handle=request.handle,
            state=self.state,
            error=None if error is None else str(error),
            code=None if error is None else error.code,
            count=count,
            weights=weights,
        )
        self._reply(frontend, reply)


def _waits(command: Command) -> bool:
    """Whether a command waits until requests have ended."""
    return isinstance(command, Pause) and command.mode == "wait"
