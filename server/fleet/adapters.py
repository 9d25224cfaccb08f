"""LoRA adapters of a fleet: every replica has those that its servers were asked to load.

What a name stands for changes by an `AdapterChange`, which carries a stamp; of two changes of a
name the one with the later stamp holds, in whatever order they come. Replicas report which they
have followed, so that a server can send the others to a replica that has just started.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Protocol

from msgspec import structs

from engine.client import EngineHandle
from engine.contracts.adapters import AdapterSource, NamedAdapter
from engine.contracts.control import ControlReply, EngineState, LoadAdapter, UnloadAdapter
from engine.errors import ControlError
from server.fleet.messages import (
    AdapterAnswer,
    AdapterChange,
    ReplicaReport,
    Stamp,
    decode_answer,
    decode_change,
    encode_message,
)

logger = logging.getLogger("tailrace")

FIRST: Stamp = (0, "")
"""The stamp of adapters that a replica was started with."""
REACH_S = 30.0
"""Seconds for which a replica holds a request whose adapter it has yet to get."""
FORGET_S = 600.0
"""Seconds after which it is forgotten that an adapter was unloaded."""


class AdapterReplicas(Protocol):
    """The way of changes to the replicas."""

    async def follow(self, raw: bytes) -> list[bytes]:
        """Send a change to all replicas; the `AdapterAnswer`s of those that answer."""
        ...

    async def change(self, replica: str, name: str) -> bytes:
        """Ask a replica for its last change of a name, with all that it needs; empty for none."""
        ...


class HeldAdapters:
    """The adapters of one replica.

    Args:
        replica: its name.
    """

    def __init__(self, engine: EngineHandle, replica: str) -> None:
        self._engine, self._replica = engine, replica
        self._adapters = engine.info.adapters or ()
        self._changes = {
            each.name: AdapterChange(name=each.name, stamp=FIRST, source=AdapterSource(each.path))
            for each in self._adapters
        }
        self._refused: dict[str, tuple[AdapterChange, ControlError]] = {}
        self._turn, self._news = asyncio.Lock(), asyncio.Event()

    def entered_in(self, report: ReplicaReport) -> ReplicaReport:
        """A report with the changes that were followed and refused."""
        self._changes = _without_old(self._changes)
        return structs.replace(
            report,
            adapters=self._adapters,
            changes=tuple(each.light() for each in self._changes.values()),
            refused=tuple(each.light() for each, _ in self._refused.values()),
        )

    def change(self, name: str) -> AdapterChange | None:
        """The last change of a name."""
        return self._changes.get(name)

    async def follow(self, change: AdapterChange) -> AdapterAnswer:
        """Follow a change, unless a later one of its name was followed before."""
        async with self._turn:
            known = self._changes.get(change.name)
            error = None
            if known is None or known.stamp < change.stamp:
                error = await self._follow(change)
        self._news.set()
        self._news = asyncio.Event()
        words, code = (None, None) if error is None else (str(error), error.code)
        return AdapterAnswer(replica=self._replica, error=words, code=code, adapters=self._adapters)

    async def _follow(self, change: AdapterChange) -> ControlError | None:
        name, source = change.name, change.source
        refused = self._refused.get(name)
        if refused is not None and refused[0].stamp == change.stamp:
            return refused[1]
        try:
            if source is None:
                reply = await self._engine.control(UnloadAdapter(name=name))
            else:
                command = LoadAdapter(name=name, source=source, replaces=True)
                reply = await self._engine.control(command)
            self._adapters = reply.state.adapters
        except ControlError as error:
            if source is not None or error.code != "no_adapter":
                self._refused[name] = change, error
                return error
        self._refused.pop(name, None)
        self._changes[name] = change
        return None

    async def reach(self, name: str, stamp: Stamp) -> bool:
        """Wait until a change of a name was followed; False where it is not in good time."""
        end = time.monotonic() + REACH_S
        while (known := self._changes.get(name)) is None or known.stamp < stamp:
            refused = self._refused.get(name)
            if refused is not None and refused[0].stamp >= stamp:
                return False
            try:
                await asyncio.wait_for(self._news.wait(), end - time.monotonic())
            except TimeoutError:
                return False
        return True


class FleetAdapters:
    """The adapters of all replicas, as one server sees them.

    Args:
        server: a name of it, unique in the fleet.

    Attributes:
        named: what requests can name: each is in one replica at least, as it was changed last.
    """

    def __init__(self, replicas: AdapterReplicas, server: str) -> None:
        self._replicas, self._server = replicas, server
        self._changes: dict[str, AdapterChange] = {}
        self._found: dict[tuple[str, Stamp], NamedAdapter] = {}
        self._reports: list[ReplicaReport] = []
        self._spreading: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self.named: tuple[NamedAdapter, ...] = ()

    def stamp(self, name: str) -> Stamp:
        """The stamp of the last change of a name."""
        known = self._changes.get(name)
        return FIRST if known is None else known.stamp

    def digest(self, name: str) -> str:
        """The digest of what a name stands for; empty for none."""
        return next((each.digest for each in self.named if each.name == name), "")

    async def control(self, command: LoadAdapter | UnloadAdapter) -> ControlReply:
        """Load or unload an adapter in all replicas.

        Raises:
            ControlError: a replica refuses it; then all have what they had before.
        """
        async with self._turn:
            return await self._control(command)

    async def _control(self, command: LoadAdapter | UnloadAdapter) -> ControlReply:
        name, before = command.name, self._changes.get(command.name)
        is_there = before is not None and before.source is not None
        source = None
        if isinstance(command, LoadAdapter):
            source = command.source
            if is_there and not command.replaces:
                words = "is loaded already; unload it first, or set load_inplace"
                raise ControlError(f"the adapter {name!r} {words}", "adapter_exists")
            if source.handles:
                words = "the replicas of a fleet cannot open tensors of another process: send them"
                raise ControlError(f"{words} as tensors", "adapter_refused")
        elif not is_there:
            raise ControlError(f"no adapter {name!r} is loaded", "no_adapter")
        change = AdapterChange(name=name, stamp=self._next(), source=source)
        answers = await self._followed(change)
        refused = next((each for each in answers if each.error is not None), None)
        if refused is not None:
            await self._go_back(name, before)
            words = f"replica {refused.replica}: {refused.error}"
            raise ControlError(words, refused.code or "fleet")
        if not answers:
            raise ControlError("no replica answers", "fleet")
        self._note(change, answers)
        return ControlReply(handle=0, state=EngineState(adapters=self.named))

    async def _go_back(self, name: str, before: AdapterChange | None) -> None:
        """Let all replicas have what they had before a change that one of them has refused."""
        source = None
        if before is not None:
            source = (await self._whole(before, self._reports)).source
        change = AdapterChange(name=name, stamp=self._next(), source=source)
        self._note(change, [each for each in await self._followed(change) if each.error is None])

    async def _followed(self, change: AdapterChange) -> list[AdapterAnswer]:
        """Send a change to all replicas."""
        return [decode_answer(raw) for raw in await self._replicas.follow(encode_message(change))]

    def _note(self, change: AdapterChange, answers: Iterable[AdapterAnswer]) -> None:
        """Enter a change that replicas have followed."""
        self._changes[change.name] = change
        for answer in answers:
            self._find(change, answer.adapters)
        self._name()

    def _find(self, change: AdapterChange, adapters: Iterable[NamedAdapter]) -> None:
        for adapter in adapters:
            if adapter.name == change.name:
                self._found[change.name, change.stamp] = adapter

    def _name(self) -> None:
        """Say what names are for."""
        latest = {
            (each.name, each.stamp) for each in self._changes.values() if each.source is not None
        }
        self._found = {key: found for key, found in self._found.items() if key in latest}
        self.named = tuple(self._found[key] for key in sorted(self._found))

    def _next(self) -> Stamp:
        latest = max((each.stamp[0] for each in self._changes.values()), default=0)
        return max(time.time_ns(), latest + 1), self._server

    # -- replicas ---------------------------------------------------------------------------

    def take(self, reports: list[ReplicaReport]) -> None:
        """Enter what replicas report, and send changes to those that lack them."""
        for report in reports:
            for change in report.changes:
                known = self._changes.get(change.name)
                if known is None or known.stamp < change.stamp:
                    self._changes[change.name] = change
        self._reports, self._changes = reports, _without_old(self._changes)
        for report in reports:
            for change in report.changes:
                if change.stamp == self.stamp(change.name):
                    self._find(change, report.adapters)
        self._name()
        lacking = [each for each in self._changes.values() if _is_lacked(each, reports)]
        if lacking and (self._spreading is None or self._spreading.done()):
            self._spreading = asyncio.create_task(self._spread(lacking, reports))

    async def _spread(self, changes: list[AdapterChange], reports: list[ReplicaReport]) -> None:
        """Send changes to all replicas, of which some lack them."""
        for each in changes:
            change = await self._whole(each, reports)
            if not change.is_whole:
                continue
            for answer in await self._followed(change):
                if answer.error is not None:
                    words = "replica %s does not get the adapter %r: %s"
                    logger.error(words, answer.replica, change.name, answer.error)

    async def _whole(self, change: AdapterChange, reports: list[ReplicaReport]) -> AdapterChange:
        """A change with the tensors of an adapter that was given, if a replica still has them."""
        for report in reports:
            if change.is_whole:
                break
            if any(each.stamp == change.stamp for each in report.changes):
                raw = await self._replicas.change(report.replica, change.name)
                found = decode_change(raw) if raw else change
                if found.stamp == change.stamp and found.is_whole:
                    self._changes[change.name] = change = found
        return change

    async def close(self) -> None:
        """Send changes no longer."""
        if self._spreading is not None:
            self._spreading.cancel()
            await asyncio.gather(self._spreading, return_exceptions=True)


def _is_lacked(change: AdapterChange, reports: list[ReplicaReport]) -> bool:
    """Whether a replica has yet to follow a change, and has not refused it."""
    for report in reports:
        own = next((each.stamp for each in report.changes if each.name == change.name), None)
        if own is None and change.source is None:
            continue  # it has started since, and has nothing to unload
        if (own is None or own < change.stamp) and change.light() not in report.refused:
            return True
    return False


def _without_old(changes: dict[str, AdapterChange]) -> dict[str, AdapterChange]:
    """Changes without names that were taken away long ago."""
    oldest = time.time_ns() - int(FORGET_S * 1e9)
    return {
        name: each
        for name, each in changes.items()
        if each.source is not None or each.stamp[0] > oldest
    }
