"""`FleetEngine`: several replicas as the one engine that a server is written against."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engine.arrays import Int32Array
from engine.contracts.control import (
    AnyCommand,
    ControlReply,
    EngineState,
    LoadAdapter,
    UnloadAdapter,
)
from engine.errors import ControlError, kind_and_line
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, StepOutput
from engine.planning.seeds import Seeds
from engine.stats import EngineStats
from engine.submission import Submission, deliver_output
from server.engine_metrics import NO_STATS
from server.fleet.adapters import AdapterReplicas, FleetAdapters
from server.fleet.messages import (
    FleetRequest,
    ReplicaReport,
    decode_greeting,
    decode_outputs,
    encode_message,
)
from server.fleet.prefixes import prefix_hashes
from server.fleet.totals import counters_only, total_info, total_stats
from server.http.failures import ReplicaLostError

logger = logging.getLogger("tailrace")

REPORT_S = 1.0
"""Seconds between two looks at the state of the replicas."""
MAX_ABSENT = 16
"""Replicas that have gone whose counters are kept apart; of others the sum is kept."""
SILENCE_S = 10.0
"""After so many seconds without any report there is no replica."""


class Replicas(AdapterReplicas, Protocol):
    """The replicas, wherever they are. Each method raises whatever its way of calling raises."""

    def work(self, raw: bytes, hashes: Sequence[int], model: str) -> AsyncIterator[bytes]:
        """Send a request to the replica of a model that is best for its hashes.

        What it yields is what `Replica.work` does.
        """
        ...

    def abort(self, replica: str, key: str, choice: int) -> None:
        """Tell a replica to end one choice of a request, or all with -1, without waiting."""
        ...

    async def reports(self) -> list[ReplicaReport]:
        """Ask all replicas for their state; those that do not answer are left out."""
        ...


@dataclass
class _Call:
    """A request that is open.

    Attributes:
        replica: where it is; None before the replica has said so.
        aborted: choices to end as soon as that is known.
    """

    key: str
    submission: Submission
    n: int
    replica: str | None = None
    aborted: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class FleetEngine:
    """An `EngineHandle` over replicas. It is started by `start`.

    Each request goes to one replica. Where that is lost, the request fails with
    `ReplicaLostError`; whether to try it again is for those who know what was sent to the client.

    Attributes:
        info: the replicas' descriptions as one: rows and blocks are sums.
        stats: sums over replicas; counters of those that are gone remain in them.
    """

    def __init__(self, replicas: Replicas, reports: list[ReplicaReport], seed: int | None) -> None:
        """Make the engine of replicas that have reported, at least one; see `start`.

        Args:
            seed: begins the sequence of seeds of requests that name none; None draws at random.
        """
        self.model = reports[0].model
        self.info = reports[0].info
        self.stats: EngineStats | None = None
        self.state = EngineState()
        self._replicas = replicas
        # A call that was made in the context of an HTTP request may be cancelled with it, before
        # the server has said what it wants to end.
        self._context = contextvars.copy_context()
        self._seeds = None if seed is None else Seeds(seed)
        self._calls: dict[int, _Call] = {}
        self._handles = itertools.count(1)
        self._name = uuid.uuid4().hex
        self._known: dict[str, ReplicaReport] = {}
        self._absent: dict[str, EngineStats] = {}
        self._gone = NO_STATS
        self._refused: set[str] = set()
        self._adapters = FleetAdapters(replicas, self._name)
        self._take(reports)
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, replicas: Replicas, seed: int | None = None) -> FleetEngine:
        """Wait until a replica reports, and follow the state of all of them from then on."""
        while True:
            if reports := await replicas.reports():
                break
            await asyncio.sleep(REPORT_S)
        engine = cls(replicas, reports, seed)
        engine._looking = asyncio.create_task(engine._look())
        return engine

    # -- EngineHandle -----------------------------------------------------------------------

    def new_handle(self) -> int:
        """A request handle not in use."""
        return next(self._handles)

    def submit(self, request: Request) -> Submission:
        """Send a request, never blocking."""
        if self._seeds is not None:
            request, _ = self._seeds.settle(request)
        call = self._new_call(request.handle, request.n)
        message = self._message(call, request.adapter, generate=request)
        return self._send(call, message, request.prompt_token_ids, request)

    def score(self, request: ScoringRequest) -> Submission:
        """Send a scoring request; as `submit`."""
        call = self._new_call(request.handle, 1)
        message = self._message(call, request.adapter, score=request)
        return self._send(call, message, request.query_token_ids, request)

    async def control(self, command: AnyCommand) -> ControlReply:
        """Load or unload an adapter everywhere; other commands are for an engine alone."""
        if self.info.adapters is not None and isinstance(command, LoadAdapter | UnloadAdapter):
            reply = await self._adapters.control(command)
            self.state = reply.state
            return reply
        raise ControlError("a fleet takes no commands: its replicas do", "fleet")

    def abort(self, handle: int, choice: int = -1) -> None:
        """End one choice, or all with -1. The submission still sees each choice's end."""
        if (call := self._calls.get(handle)) is None:
            return
        if call.replica is not None:
            self._tell_abort(call, choice)
        elif choice == -1 or call.n == 1:
            del self._calls[handle]
            deliver_output(_aborted(handle, call.n), {handle: call.submission})
            if call.task is not None:
                call.task.cancel()  # it may wait for a replica yet
        else:
            call.aborted.append(choice)

    def failure(self) -> str | None:
        """Why nothing can be served; None while a replica reports."""
        if time.monotonic() - self._reported_at > SILENCE_S:
            return f"no replica has answered for {SILENCE_S:g} s"
        return None if self._known else "no replica serves this server's model"

    async def close(self) -> None:
        """Follow the replicas no longer, and fail what is open; the replicas go on."""
        await self._adapters.close()
        for task in (self._looking, *(call.task for call in self._calls.values())):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # -- requests ---------------------------------------------------------------------------

    def _new_call(self, handle: int, n: int) -> _Call:
        call = _Call(f"{self._name}-{handle}", Submission(handle, n), n)
        self._calls[handle] = call
        return call

    def _message(self, call: _Call, adapter: str, **request: Any) -> FleetRequest:
        stamp = self._adapters.stamp(adapter) if adapter else None
        return FleetRequest(key=call.key, model=self.model, adapter_stamp=stamp, **request)

    def _send(
        self,
        call: _Call,
        message: FleetRequest,
        prompt: Int32Array,
        request: Request | ScoringRequest,
    ) -> Submission:
        digest = self._adapters.digest(request.adapter)
        hashes = prefix_hashes(prompt, request.cache_salt, digest)
        work = self._replicas.work(encode_message(message), hashes, self.model)
        call.task = asyncio.create_task(self._follow(call, work), context=self._context.copy())
        return call.submission

    async def _follow(self, call: _Call, work: AsyncIterator[bytes]) -> None:
        """Deliver what a replica has to say about a request, to its end."""
        handle = call.submission.handle
        try:
            await self._greet(call, await anext(work))
            async for raw in work:
                for output in decode_outputs(raw):
                    deliver_output(output, {handle: call.submission})
            if not call.submission.finished:
                raise ReplicaLostError(f"replica {call.replica} ended before the request did")
        except ReplicaLostError as error:
            call.submission.fail(error)
        except Exception as error:  # one of many of whatever carries the calls
            where = "a replica" if call.replica is None else f"replica {call.replica}"
            logger.warning("%s failed a request: %s", where, kind_and_line(error))
            words = f"{where} was lost while it worked at the request"
            call.submission.fail(ReplicaLostError(words))
        finally:
            self._calls.pop(handle, None)

    async def _greet(self, call: _Call, raw: bytes) -> None:
        greeting = decode_greeting(raw)
        if greeting.refusal is not None:
            logger.error("%s", greeting.refusal)
            raise ReplicaLostError(greeting.refusal)
        call.replica = greeting.replica
        for choice in call.aborted:
            self._tell_abort(call, choice)

    def _tell_abort(self, call: _Call, choice: int) -> None:
        assert call.replica is not None
        self._context.copy().run(self._replicas.abort, call.replica, call.key, choice)

    # -- replicas ---------------------------------------------------------------------------

    async def _look(self) -> None:
        """Ask all replicas again and again for their state."""
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                reports = await self._replicas.reports()
            except Exception as error:  # no replica at this moment, or a call that failed
                logger.debug("no reports: %s", error)
                continue
            if reports:
                self._take(reports)

    def _take(self, reports: list[ReplicaReport]) -> None:
        """Enter what replicas report; those of another model are left out, and named once."""
        self._reported_at = time.monotonic()
        own = {each.replica: each for each in reports if each.model == self.model}
        for each in reports:
            if each.replica not in own and each.replica not in self._refused:
                self._refused.add(each.replica)
                logger.error(
                    "replica %s serves %s (%s), this server %s: it gets no requests from here",
                    *(each.replica, each.model_name, each.model, self.model),
                )
        self._note_absence(own)
        self._known = own
        self._adapters.take(list(own.values()))
        self.state = EngineState(adapters=self._adapters.named)
        if own:
            self.info = total_info(each.info for each in own.values())
        known = [each.stats for each in own.values() if each.stats is not None]
        self.stats = total_stats([self._gone, *self._absent.values(), *known])

    def _note_absence(self, own: dict[str, ReplicaReport]) -> None:
        """Keep the counters of replicas that report no longer, in case they do again."""
        for name in own:
            self._absent.pop(name, None)
        for name, report in self._known.items():
            if name not in own and report.stats is not None:
                self._absent[name] = counters_only(report.stats)
        while len(self._absent) > MAX_ABSENT:
            first = next(iter(self._absent))
            self._gone = total_stats([self._gone, self._absent.pop(first)]) or NO_STATS


def _aborted(handle: int, n: int) -> StepOutput:
    """The ends of a request's choices that no replica has begun."""
    none = np.zeros(n, dtype=np.int32)
    return StepOutput(
        handles=np.full(n, handle),
        choices=np.arange(n, dtype=np.int32),
        num_new=none,
        finish=np.full(n, Finish.ABORT, dtype=np.uint8),
        num_cached=none,
        token_ids=none[:0],
    )
