"""A fleet without Ray: replicas over fake engines, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial

from engine.client import EngineHandle
from server.fleet.messages import (
    AdapterChange,
    ReplicaReport,
    decode_change,
    encode_message,
)
from server.fleet.replica import Replica
from server.fleet.routing import PrefixRouter

MODEL = "a-model"


class LocalReplicas:
    """`Replicas` in this process.

    Attributes:
        sent: the replica of each request, in order.
        aborts: what replicas were asked to end.
        dead: replicas that no longer answer; requests there fail at their next message.
        silent: replicas that do not report.
        followed: changes of adapters that were sent to all.
    """

    def __init__(self, engines: dict[str, EngineHandle], models: dict[str, str] | None = None):
        models = models or {}
        self._replicas = {
            name: Replica(
                engine, name, models.get(name, MODEL), f"models/{name}", partial(self._end, name)
            )
            for name, engine in engines.items()
        }
        self._router = PrefixRouter()
        self._loads = dict.fromkeys(engines, 0)
        self.sent: list[str] = []
        self.aborts: list[tuple[str, int]] = []
        self.dead: set[str] = set()
        self.silent: set[str] = set()
        self.followed: list[AdapterChange] = []

    async def work(self, raw: bytes, hashes: Sequence[int], model: str) -> AsyncIterator[bytes]:
        loads = {name: load for name, load in self._loads.items() if name not in self.dead}
        name = self._router.choose(hashes, loads).replica
        self.sent.append(name)
        self._loads[name] += 1
        try:
            async with aclosing(self._replicas[name].work(raw)) as messages:
                async for message in messages:
                    if name in self.dead:
                        raise ConnectionResetError(f"{name} is dead")
                    yield message
        finally:
            self._loads[name] -= 1

    async def _end(self, name: str, reason: str) -> None:
        self.dead.add(name)

    def abort(self, replica: str, key: str, choice: int) -> None:
        self.aborts.append((replica, choice))
        self._replicas[replica].abort(key, choice)

    async def reports(self) -> list[ReplicaReport]:
        return [each.report() for each in self._there()]

    async def follow(self, raw: bytes) -> list[bytes]:
        change = decode_change(raw)
        self.followed.append(change)
        answers = [await each.adapters.follow(change) for each in self._there()]
        return [encode_message(each) for each in answers]

    async def change(self, replica: str, name: str) -> bytes:
        found = self._replicas[replica].adapters.change(name)
        return b"" if found is None or replica in self.dead else encode_message(found)

    def _there(self) -> list[Replica]:
        gone = self.dead | self.silent
        return [each for name, each in self._replicas.items() if name not in gone]
