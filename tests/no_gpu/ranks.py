"""Rank 0 of several on a GPU that is not there: its mailboxes, and others that say nothing."""

from __future__ import annotations

from concurrent.futures import Future

import torch

from engine.contracts.adapters import AdapterSource
from engine.parallel.device_exchange import WORD_BYTES, DeviceExchange, _MailboxLink
from engine.parallel.messages import Message
from sampling.device.exchange import MAX_PACKED, NUM_PROGRAMS, Mailboxes, letter_bytes
from tests.no_gpu.tensors import GPU


class PretendedRanks(DeviceExchange):
    """An exchange with ranks that tell what rank 0 tells; on the device it launches kernels."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.num_begun = 0, size, 0
        link = object.__new__(_MailboxLink)
        link._rank = 0
        link._mailboxes = _mailboxes(size)
        self._link, self.description = link, "mailboxes of no other rank"

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        return (
            self._link.all_gather(values) if values.is_cuda else torch.stack([values] * self.size)
        )


class SilentRanks:
    """The other ranks, as rank 0's runner sends them steps."""

    def send(self, message: Message) -> None: ...

    def read(self, number: int, source: AdapterSource) -> list[Future[bytes]]:
        return []

    def failure(self) -> str | None:
        return None


def _mailboxes(size: int) -> Mailboxes:
    def words(*shape: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(shape, dtype=torch.int32, device=GPU) for _ in range(size))

    return Mailboxes(
        letters=words(letter_bytes(size) // WORD_BYTES),
        packed=tuple(each.view(torch.int64) for each in words(4 * size * MAX_PACKED)),
        received=words(NUM_PROGRAMS, size),
        sent=words(NUM_PROGRAMS)[0],
    )
