"""A reply of thousands of positions: how long it takes, and that the event loop goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import numpy as np
import orjson

from engine.request import LogprobArrays
from server.fragments import TokenFragments
from server.logprobs import LogprobWriter, join_columns
from server.worker import Worker

POSITIONS, TOP, VOCAB = 4096, 20, 8192
LIMIT_S, LONGEST_WAIT_S = 0.020, 0.050
REFERENCE_S = 0.0103
"""`_reference` on an idle core of the machine the limit is for."""


def _reply() -> Callable[[], bytes]:
    rng = np.random.default_rng(0)
    texts = [f" t{i}" if i % 50 else "\ufffd" for i in range(VOCAB)]
    writer = LogprobWriter(TokenFragments(texts, [t.encode() for t in texts]), as_ids=False)
    token_ids = rng.integers(0, VOCAB, POSITIONS).astype(np.int32)
    order = np.argsort(rng.random((POSITIONS, VOCAB // 8)), axis=1)[:, :TOP]
    arrays = LogprobArrays(
        chosen=rng.normal(-3, 1, POSITIONS).astype(np.float32),
        ranks=rng.integers(1, 99, POSITIONS).astype(np.int32),
        top_ids=(order * 8 + rng.integers(0, 8, order.shape)).astype(np.int32),
        top_logprobs=rng.normal(-5, 2, order.shape).astype(np.float32),
        explicit=np.zeros((POSITIONS, 0), dtype=np.float32),
    )
    offsets = list(range(POSITIONS))

    def write() -> bytes:
        return orjson.dumps(join_columns([writer.scored(token_ids, offsets, arrays, TOP)]))

    return write


def _reference() -> None:
    assert sum(i * i for i in range(300_000)) > 0


def _fastest(work: Callable[[], object], attempts: int = 15) -> float:
    times = []
    for _ in range(attempts):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def test_takes_under_20_ms() -> None:
    """Of an idle core: a machine whose cores are shared is slower by what the reference tells."""
    write = _reply()
    assert len(json.loads(write())["top_logprobs"]) == POSITIONS
    slowness = max(_fastest(_reference) / REFERENCE_S, 1.0)
    taken = min(_fastest(write) for _ in range(3))
    assert taken < LIMIT_S * slowness, f"{taken * 1e3:.1f} ms, slowness {slowness:.2f}"


async def test_the_event_loop_never_waits_long() -> None:
    """Beyond what it waits on this machine while nothing is written."""
    write, worker = _reply(), Worker()

    async def longest_wait(work: Callable[[], object]) -> float:
        longest, done = 0.0, asyncio.create_task(worker.run(work))
        while not done.done():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)
        return longest

    waits = [
        await longest_wait(write) - await longest_wait(lambda: time.sleep(0.03)) for _ in range(7)
    ]
    worker.close()
    assert sorted(waits)[len(waits) // 2] < LONGEST_WAIT_S, waits
