"""Commands to a running engine, and its answers. No torch.

A command comes from one frontend and concerns the requests of all of them. It runs between two
steps. `EngineState` tells every frontend what holds the engine, with each of its statistics.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

from engine.contracts.adapters import AdapterSource, NamedAdapter
from engine.contracts.weights import AnyWeightCommand, UpdateReport, WeightReply

FIRST_VERSION = "default"
"""The version of the weights that an engine was started with."""

PauseMode = Literal["abort", "wait", "keep"]
MemoryPart = Literal["weights", "kv_cache"]
DrafterState = Literal["none", "current", "stale", "off"]
"""Whether a drafter has weights, and whether those were updated with the model's."""

MEMORY_PARTS: tuple[MemoryPart, ...] = ("weights", "kv_cache")
"""What sleep gives back, in the order in which it is taken again."""
NO_SLEEP = "this server's memory cannot be given back: start it with --enable-sleep-mode"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps an engine from planning steps, and which weights and adapters it has.

    Attributes:
        is_paused: no step is planned until the pause ends, or it waits for the last requests to
            end.
        refuses: requests that come now are not to wait until it goes on.
        asleep: parts of the memory that were given back, in the order of `MEMORY_PARTS`.
        lacks_weights: weights were let go, and not all of them were written again.
        weight_version: of the weights, as whoever updated them last calls it.
        num_updates: how often weights were written.
        last_update: what was written last; None before the first update.
        weight_tag: drawn at random whenever weights are written; empty before that.
        drafter: "stale" drafts after weights that the model has no more, "off" not at all.
        adapters: those that requests can name.
    """

    is_paused: bool = False
    refuses: bool = False
    asleep: tuple[MemoryPart, ...] = ()
    lacks_weights: bool = False
    weight_version: str = FIRST_VERSION
    num_updates: int = 0
    last_update: UpdateReport | None = None
    weight_tag: str = ""
    drafter: DrafterState = "none"
    adapters: tuple[NamedAdapter, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether requests have to wait for a command."""
        return self.is_paused or bool(self.asleep) or self.lacks_weights


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command"):
    """A command; each runs when those before it are done."""


class Pause(Command, tag="pause", frozen=True, kw_only=True):
    """Plan no more steps.

    Attributes:
        mode: "abort" ends what runs and waits, with what it has; "wait" lets it end, unless the
            engine is held already; "keep" stops it between two steps, to go on later with its seed,
            its grammar and its logprobs.
        forgets: forget all prefixes, and let choices that go on compute their keys again.
        refuses: as in `EngineState`.
        for_sleep: it ends once all is awake, unless the engine is paused otherwise.
    """

    mode: PauseMode = "abort"
    forgets: bool = True
    refuses: bool = True
    for_sleep: bool = False


class Resume(Command, tag="resume", frozen=True, kw_only=True):
    """End a `Pause`; an engine that sleeps or lacks weights goes on once it does not."""


class FlushPrefixes(Command, tag="flush", frozen=True, kw_only=True):
    """Forget all prefixes, so that no later request finds any.

    Attributes:
        restarts: choices that run compute their keys again; else the command is refused while any
            do.
    """

    restarts: bool = False


class AbortRequests(Command, tag="abort", frozen=True, kw_only=True):
    """End requests of all frontends, with what they have.

    Attributes:
        names: those whose `Request.name` is one of these; None for all.
    """

    names: tuple[str, ...] | None = None


class Sleep(Command, tag="sleep", frozen=True, kw_only=True):
    """Give memory back, after a pause.

    Attributes:
        parts: of the memory.
        keeps_weights: weights are kept on the host; else they are let go, also those that sleep
            there already.
    """

    parts: tuple[MemoryPart, ...] = MEMORY_PARTS
    keeps_weights: bool = True


class WakeUp(Command, tag="wake", frozen=True, kw_only=True):
    """Take parts of the memory again.

    Attributes:
        parts: of those that are asleep.
    """

    parts: tuple[MemoryPart, ...] = MEMORY_PARTS


class LoadAdapter(Command, tag="load_adapter", frozen=True, kw_only=True):
    """Read an adapter and give it a name; steps go on meanwhile.

    Attributes:
        replaces: the name may stand for another, which running choices keep.
    """

    name: str
    source: AdapterSource
    replaces: bool = False


class UnloadAdapter(Command, tag="unload_adapter", frozen=True, kw_only=True):
    """Take an adapter's name away; running choices keep the adapter."""

    name: str


class RunWeights(Command, tag="weights", frozen=True, kw_only=True):
    """Read or change weights, on every rank alike."""

    weights: AnyWeightCommand


AnyCommand: TypeAlias = (
    Pause
    | Resume
    | FlushPrefixes
    | AbortRequests
    | Sleep
    | WakeUp
    | LoadAdapter
    | UnloadAdapter
    | RunWeights
)


class ControlRequest(msgspec.Struct, frozen=True):
    """A command on its way to the engine; `handle` is as `Request.handle`."""

    handle: int
    command: AnyCommand


def is_named(name: str, names: Collection[str]) -> bool:
    """Whether a request's name is one of these, whole or without its kind (`cmpl-`)."""
    return name in names or name.partition("-")[2] in names


class ControlReply(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command.

    Attributes:
        state: of the engine afterwards.
        error, code: why it was not followed; None where it was.
        weights: what `RunWeights` gave.
        count: requests that `AbortRequests` ended, or that a pause keeps.
    """

    handle: int
    state: EngineState
    error: str | None = None
    code: str | None = None
    count: int = 0
    weights: WeightReply = None
