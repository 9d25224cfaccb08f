"""The engine between two steps, as commands find it. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.contracts.control import MemoryPart
from engine.contracts.weights import AnyWeightCommand, WeightReply
from engine.messages.step_output import Finish
from engine.rows import Choice
from engine.step_parts import StepParts


class HeldEngine:
    """What commands ask of an engine.

    Args:
        end: ends choices.

    Attributes:
        is_held: no more steps are planned; those launched are still read back.
    """

    def __init__(self, parts: StepParts, end: Callable[[Iterable[Choice], Finish], None]) -> None:
        self.is_held = False
        self.adapters = parts.adapters
        self._parts, self._end = parts, end

    # -- whether steps are planned ----------------------------------------------------------

    def hold(self) -> None:
        """Plan no more steps."""
        self.is_held = True

    def release(self) -> None:
        """Plan steps again, of the requests that came meanwhile too."""
        self.is_held = False
        self._parts.arrivals.unpark()
        self._parts.scoring.unpark()

    def park(self) -> None:
        """Let requests that come from now on wait for `release`, while the others end."""
        self._parts.arrivals.park()
        self._parts.scoring.park()

    @property
    def num_ending(self) -> int:
        """Choices and scoring requests that have not ended, but for those that are parked."""
        parts = self._parts
        return parts.unfinished.count - parts.arrivals.num_parked + parts.scoring.num_unparked

    @property
    def num_holding(self) -> int:
        """Choices and scoring requests that hold blocks."""
        return len(self._parts.table.running) + self._parts.scoring.num_active

    @property
    def is_quiet(self) -> bool:
        """Whether no step was launched that was not read back, and all outputs are collected."""
        parts = self._parts
        is_empty = parts.pipeline.is_empty and not parts.scoring.is_launched
        return is_empty and not parts.ring.has_output

    def abort_named(self, names: tuple[str, ...] | None) -> int:
        """End requests of all frontends by `Request.name`, all with None; returns their number."""
        choices = self._parts.unfinished.named(names)
        num_scoring = self._parts.scoring.cancel_all() if names is None else 0
        self._end(choices, Finish.CANCELED)
        return num_scoring + len({(c.frontend, c.request.handle) for c in choices})

    # -- between two steps ------------------------------------------------------------------

    def forget_prefixes(self, *, restarts: bool) -> None:
        """Forget what computed blocks and states can be found by.

        Args:
            restarts: running choices and scoring requests compute their keys again.
        """
        parts = self._parts
        if restarts:
            parts.scheduler.preempt_all()
            parts.scoring.restart()
        parts.pool.forget_all()
        if parts.snapshots is not None:
            parts.snapshots.pool.forget_all()

    def give_back(self, memory: Sequence[MemoryPart], *, keeps_weights: bool) -> None:
        """Give parts of the memory back; raises `ControlError`."""
        self._parts.runner.give_back(memory, keeps_weights=keeps_weights)

    def take_again(self, memory: Sequence[MemoryPart]) -> None:
        """Take parts of the memory again, all or none; raises `ControlError`."""
        self._parts.runner.take_again(memory)

    @property
    def has_drafter_weights(self) -> bool:
        """Whether there is a drafter that has weights, switched off or on."""
        return self._parts.drafting.has_cache

    def switch_drafts(self, *, off: bool) -> None:
        """Draft from the next step on, or no more."""
        self._parts.drafting.switch.is_off = off

    def run_weights(self, command: AnyWeightCommand) -> WeightReply:
        """Read or change weights; raises `WeightUpdateError`."""
        return self._parts.runner.weights(command)

    def change_weights(self, version: str, num_updates: int, tag: str = "") -> None:
        """Note that weights were written, the drafter's too.

        Keys that were computed before are found by no request after. Choices that have drawn keep
        theirs; others, and scoring requests, begin again, so that no number mixes weights. Parts
        that were reported of a prompt are reported again.
        """
        parts = self._parts
        parts.ring.weight_version, parts.ring.weight_tag = version, tag
        parts.prefixes.num_updates = num_updates
        parts.scheduler.preempt_all(undrawn_only=True)
        for choice in parts.unfinished.waiting:
            choice.hashes, choice.num_prompt_reported = None, 0
        parts.scoring.restart(num_updates=num_updates)

    def rename_weights(self, version: str) -> None:
        """Call the weights by another version."""
        self._parts.ring.weight_version = version
