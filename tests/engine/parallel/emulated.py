"""Engines of several ranks in one process: the others are threads that follow rank 0's messages."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import torch

from engine.config import EngineConfig
from engine.contracts.adapters import AdapterSource
from engine.contracts.runner import StartingRunner
from engine.engine import Engine
from engine.parallel.lead import LeadReader, LeadRunner
from engine.parallel.messages import Message, ReadAdapter, Setup, decode, encode
from engine.parallel.readings import RankReadings
from engine.runner.model_runner import ModelRunner
from engine.startup.build import assemble, build_rank, load
from engine.startup.device import make_sleeping
from engine.startup.error_statement import ErrorMeasure
from engine.startup.rank import Follower
from engine.structured.tokenizer import TokenizerReader
from tests.sampling.ranks import Board, ThreadRank

CPU = torch.device("cpu")


class ThreadRanks:
    """Ranks 1 and up as threads, which are sent bytes as processes are.

    Attributes:
        sent: bytes of each message.
    """

    def __init__(self, config: EngineConfig, board: Board) -> None:
        self.sent: list[int] = []
        self._queues = [queue.SimpleQueue[bytes | None]() for _ in range(1, board.size)]
        self._readings = RankReadings(board.size)
        self._failures: list[str] = []
        self._fault: str | None = None
        self._threads = []
        for rank, messages in enumerate(self._queues, 1):
            exchange = ThreadRank(board, rank)
            thread = threading.Thread(target=self._follow, args=(config, exchange, messages))
            thread.start()
            self._threads.append(thread)

    def send(self, message: Message) -> None:
        raw = encode(message)
        self.sent.append(len(raw))
        for messages in self._queues:
            messages.put(raw)

    def read(self, number: int, source: AdapterSource) -> list[Future[bytes]]:
        readings = self._readings.begin(number)
        self.send(ReadAdapter(number, source))
        return readings

    def failure(self) -> str | None:
        return self._failures[0] if self._failures else None

    def break_next(self, message: str) -> None:
        """Let every one of them raise at its next message."""
        self._fault = message

    def end(self) -> None:
        for messages in self._queues:
            messages.put(None)
        for thread in self._threads:
            thread.join()

    def _follow(
        self, config: EngineConfig, exchange: ThreadRank, messages: queue.SimpleQueue[bytes | None]
    ) -> None:
        try:
            follower = Follower(
                build_rank(config, exchange), partial(self._readings.end, exchange.rank)
            )
            while (raw := messages.get()) is not None:
                if self._fault is not None:
                    raise RuntimeError(self._fault)
                message = decode(raw)
                assert not isinstance(message, Setup)
                follower.follow(message)
        except Exception as error:
            self._failures.append(f"rank {exchange.rank}: {error}")
            self._readings.lose(self._failures[0])
            exchange.leave()


@contextmanager
def engine_of(config: EngineConfig) -> Iterator[tuple[Engine, ThreadRanks]]:
    """An engine of `config.tensor_parallel_size` ranks, and those but the first."""
    board = Board(config.tensor_parallel_size)
    exchange, others = ThreadRank(board, 0), ThreadRanks(config, board)

    def lead(runner: ModelRunner) -> StartingRunner:
        return LeadRunner(runner, runner.mask_buffer, others)

    tokenizer = None if config.structured is None else TokenizerReader(config.structured)
    measure = ErrorMeasure(config, tokenizer, exchange)
    make = partial(assemble, tokenizer=tokenizer, exchange=exchange, measure=measure)
    try:
        memory = make_sleeping(config, CPU)
        model, adapters = load(config, CPU, exchange, measure.reference, memory)
        parts = make(
            config,
            model,
            CPU,
            lead,
            adapters=adapters,
            lead_reader=lambda reader: LeadReader(reader, others),
            memory=memory,
        )
        yield parts.engine(), others
    finally:
        others.end()
