"""Ranks of one engine played by threads of one process, which count what they exchange.

They run one at a time, changing places where they exchange: Triton's interpreter is not made for
threads that launch kernels side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from sampling.device.ranks import RaggedRows, RankExchange

T = TypeVar("T")

POISON = 2**31 - 7
"""In the place of words that are not reported."""
TIMEOUT_S = 60.0
"""Seconds after which ranks that do not exchange alike are found out."""


@dataclass
class Board:
    """What the ranks share: a place for each one's tensor, and two barriers around the reading."""

    size: int
    places: list[Tensor] = field(init=False)
    barrier: threading.Barrier = field(init=False)
    baton: threading.Lock = field(default_factory=threading.Lock)
    holder: int = 0

    def __post_init__(self) -> None:
        self.places = [torch.empty(0)] * self.size
        self.barrier = threading.Barrier(self.size, timeout=TIMEOUT_S)

    @contextmanager
    def set_down(self) -> Iterator[None]:
        """Let another thread run; one that works without the baton is not kept by it."""
        held = self.baton.locked() and self.holder == threading.get_ident()
        if not held:
            yield
            return
        self.baton.release()
        try:
            yield
        finally:
            self.take()

    def take(self) -> None:
        """Wait for the baton."""
        self.baton.acquire()
        self.holder = threading.get_ident()


class ThreadRank:
    """The `RankExchange` of one of the threads.

    Attributes:
        sent: bytes of each of its messages.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self.rank, self.size = rank, board.size
        self.sent: list[int] = []
        self._board = board

    def all_gather(self, values: Tensor) -> Tensor:
        self.sent.append(values.nbytes)
        return self._gather(values)

    def gather_rows(self, words: Tensor, counts: Tensor, width: int) -> RaggedRows:
        self.sent.append(4 * int(counts.clamp(min=0).sum()))
        reported = torch.full((len(words), width), POISON, dtype=torch.int32, device=words.device)
        for row, count in enumerate(counts.tolist()):
            reported[row, : max(count, 0)] = words[row, : max(count, 0)]
        gathered, all_counts = self._gather(reported), self._gather(counts)
        assert ((all_counts < 0) == (all_counts[0] < 0)).all(), "all ranks send of the same rows"
        return RaggedRows(gathered, all_counts)

    def _gather(self, values: Tensor) -> Tensor:
        board = self._board
        board.places[self.rank] = values
        with board.set_down():
            board.barrier.wait()
        gathered = torch.stack(board.places)  # raises where shapes differ
        with board.set_down():
            board.barrier.wait()
        return gathered

    def leave(self) -> None:
        """Fail: the others raise where they wait for this rank."""
        self._board.barrier.abort()


def on_ranks(size: int, work: Callable[[RankExchange], T]) -> list[T]:
    """Do the same work on `size` ranks; returns what each made of it."""
    return [result for result, _ in on_counting_ranks(size, work)]


def on_counting_ranks(size: int, work: Callable[[RankExchange], T]) -> list[tuple[T, list[int]]]:
    """`on_ranks`, with the bytes of each message of each rank."""
    board = Board(size)

    def run(rank: int) -> tuple[T, list[int]]:
        exchange = ThreadRank(board, rank)
        board.take()
        try:
            return work(exchange), exchange.sent
        except BaseException:
            board.barrier.abort()
            raise
        finally:
            board.baton.release()

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    for future in futures:  # what broke first, not the barrier that broke after it
        error = future.exception()
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
