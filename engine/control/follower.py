"""What each command does to the engine, and the state that it leaves it in. No torch."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from engine.contracts.control import (
    MEMORY_PARTS,
    AbortRequests,
    AnyCommand,
    DrafterState,
    EngineState,
    FlushPrefixes,
    LoadAdapter,
    Pause,
    Resume,
    RunWeights,
    Sleep,
    UnloadAdapter,
    WakeUp,
)
from engine.contracts.weights import (
    AbandonUpdate,
    AnyWeightCommand,
    BeginUpdate,
    EndGroup,
    FinishUpdate,
    InitGroup,
    LetWeightsGo,
    PassTensors,
    ReceiveTensors,
    SetVersion,
    UpdateReport,
    WeightReply,
    WeightUpdateError,
)
from engine.control.held_engine import HeldEngine
from engine.errors import ControlError


@dataclass(frozen=True)
class Followed:
    """What a command's reply says besides the engine's state; see `ControlReply`."""

    count: int = 0
    weights: WeightReply = None


NOTHING = Followed()


class CommandFollower:
    """Follows commands.

    Attributes:
        state: what holds the engine.
    """

    def __init__(self, engine: HeldEngine) -> None:
        self._engine = engine
        self._begun = BeginUpdate()
        self._sent_version: str | None = None
        self._own_pause: Pause | None = None  # that a sleep does not end
        self._largest_version: int | None = None
        self.state = EngineState(
            adapters=engine.adapters.named if engine.adapters else (),
            drafter="current" if engine.has_drafter_weights else "none",
        )

    def change(self, **changes: Any) -> None:
        """Change the state; an engine that nothing holds refuses nothing."""
        state = replace(self.state, **changes)
        self.state = replace(state, refuses=state.refuses and state.is_held)

    def enter_pause(self, command: Pause) -> None:
        """Note a pause that begins; one before or after a sleep outlasts it, as it was."""
        if not command.for_sleep:
            self._own_pause = command
        elif not self.state.is_paused:
            self._own_pause = None
        self.change(is_paused=True, refuses=command.refuses)

    def follow(self, command: AnyCommand) -> Followed:
        """Follow a command, with no step in flight; raises `ControlError`."""
        match command:
            case Pause():
                if command.forgets:
                    self._engine.forget_prefixes(restarts=True)
                return Followed(count=self._engine.num_ending)
            case Resume():
                self._resume()
            case FlushPrefixes():
                self._flush(command)
            case Sleep():
                self._sleep(command)
            case WakeUp():
                self._wake(command)
            case RunWeights():
                return Followed(weights=self._run_weights(command.weights))
            case AbortRequests() | LoadAdapter() | UnloadAdapter():
                raise AssertionError("they wait for nothing")
        return NOTHING

    def _resume(self) -> None:
        if not self.state.is_paused:
            raise ControlError("the engine is not paused", "not_paused")
        self.change(is_paused=False)

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
        lets_go = "weights" in command.parts and not command.keeps_weights
        parts = [
            part
            for part in command.parts
            if part not in self.state.asleep or (lets_go and part == "weights")
        ]
        self._engine.give_back(parts, keeps_weights=command.keeps_weights)
        if "kv_cache" in parts:
            self._engine.forget_prefixes(restarts=True)
        if lets_go:
            self._engine.run_weights(LetWeightsGo())
        asleep = {*self.state.asleep, *parts}
        self.change(
            refuses=self.state.refuses or not self.state.is_paused,
            asleep=tuple(part for part in MEMORY_PARTS if part in asleep),
            lacks_weights=self.state.lacks_weights or lets_go,
        )

    def _wake(self, command: WakeUp) -> None:
        state = self.state
        parts = [part for part in state.asleep if part in command.parts]
        self._engine.take_again(parts)
        asleep = tuple(part for part in state.asleep if part not in parts)
        pause, changes = self._own_pause, {}
        if not asleep and state.is_paused:
            changes = {"refuses": pause.refuses} if pause else {"is_paused": False}
        self.change(asleep=asleep, **changes)

    # -- weights ----------------------------------------------------------------------------

    def _run_weights(self, command: AnyWeightCommand) -> WeightReply:
        if isinstance(command, SetVersion):
            self._check_version(command.version)
            self._engine.rename_weights(command.version)
            self._note_version(command.version)
            return None
        if isinstance(command, FinishUpdate):
            command = replace(command, version=command.version or self._sent_version)
        try:
            self._check(command)
        except ControlError:
            if isinstance(command, ReceiveTensors):
                self._refuse_tensors(command)
            raise
        reply = self._engine.run_weights(command)
        match command:
            case BeginUpdate():  # one that is refused is not the update in progress
                self._note_update(command)
            case AbandonUpdate():
                self._note_update(BeginUpdate())
            case ReceiveTensors():
                self._sent_version = command.version or self._sent_version
            case FinishUpdate():
                assert isinstance(reply, UpdateReport)
                self._enter_update(command, reply)
        return reply

    def _note_update(self, begun: BeginUpdate) -> None:
        """Note what the update in progress is; where there is none, ranks refuse what follows."""
        self._begun, self._sent_version = begun, None

    def _refuse_tensors(self, command: ReceiveTensors) -> None:
        """Let ranks do what they do where they refuse tensors: the update of which they are ends.

        Without them it would be written in part, under a version that came with others.
        """
        if not command.is_part or self._begun.takes_parts:
            self._engine.run_weights(AbandonUpdate())
            self._note_update(BeginUpdate())
        self._engine.run_weights(PassTensors(source=command.source))

    def _check(self, command: AnyWeightCommand) -> None:
        """Refuse what the ranks need not be asked about."""
        is_free = isinstance(command, InitGroup | EndGroup | PassTensors | AbandonUpdate)
        if "weights" in self.state.asleep and not is_free:
            raise ControlError("the weights are asleep: wake them up first", "asleep")
        if not isinstance(command, ReceiveTensors | FinishUpdate):
            return
        if command.version is not None and self._begun.target == "model":
            self._check_version(command.version)
        is_off = isinstance(command, FinishUpdate) and command.drafter == "off"
        if is_off and not self._engine.has_drafter_weights:
            raise WeightUpdateError("there is no drafter with weights to switch off", "no_drafter")

    def _enter_update(self, command: FinishUpdate, report: UpdateReport) -> None:
        """Let requests, prefixes and replies know that weights were written.

        The keys of a drafter are in the blocks of the model's, and drafts that are sampled decide
        which tokens a seed draws: an update of the drafter alone has all consequences but another
        version. One whose tensors were all passed over wrote none.
        """
        if not report.num_weights:
            return
        num_updates, version = self.state.num_updates + 1, self.state.weight_version
        if self._begun.target == "model":
            following = max(num_updates, (self._largest_version or 0) + 1)
            version = str(following) if command.version is None else command.version
        drafter = self._drafter_after(command, report)
        self._engine.switch_drafts(off=drafter == "off")
        tag = secrets.token_hex(8)
        self._engine.change_weights(version, num_updates, tag)
        self._note_version(version)
        self.change(
            num_updates=num_updates,
            last_update=report,
            weight_tag=tag,
            lacks_weights=report.num_lacking > 0,
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
        """Refuse a number below the largest number that weights have had."""
        number, largest = _number(version), self._largest_version
        if number is not None and largest is not None and number < largest:
            raise WeightUpdateError(
                f"weight version {version} is before {largest}, the largest so far",
                "version_backwards",
            )

    def _note_version(self, version: str) -> None:
        """Enter a version that was checked."""
        number = _number(version)
        self._largest_version = self._largest_version if number is None else number
        self.change(weight_version=version)


def _number(version: str) -> int | None:
    """The number that a version is; None for a name."""
    try:
        return int(version)
    except ValueError:
        return None
