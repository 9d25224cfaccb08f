"""What ranks with a GPU each tell each other inside a step, on the device.

Tensors on the device go through mailboxes that GPUs map among each other (torch's symmetric
memory) and kernels of our own, which graphs hold; where there is no such memory, through NCCL's
all-gather. Either way sums are taken in rank order. Tensors on the host go over gloo.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

from engine.errors import first_line
from engine.parallel.collectives import GlooExchange, ordered_sum
from sampling.device.exchange import (
    MAX_PACKED,
    NUM_PROGRAMS,
    PACKED_BYTES,
    Mailboxes,
    gather_ranks,
    letter_bytes,
    sum_ranks,
)
from sampling.device.ranks import RaggedRows
from sampling.device.row_exchange import gather_rows

logger = logging.getLogger(__name__)

WORD_BYTES = 4


class Link(Protocol):
    """How tensors on the device reach the other ranks."""

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's `values`, as `RankExchange.all_gather` gives them."""
        ...

    def rank_sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `values`, added in float32 from rank 0 on, in their dtype."""
        ...

    def gather_rows(self, words: torch.Tensor, counts: torch.Tensor, width: int) -> RaggedRows:
        """Every rank's rows; see `VocabShard.gather_rows`."""
        ...


class DeviceExchange(GlooExchange):
    """The `RankExchange` of ranks with a GPU each, of one machine.

    Args:
        meeting: as for `GlooExchange`.

    Attributes:
        description: what tensors on the device go through, in words.
    """

    def __init__(self, meeting: Path, rank: int, size: int, device: torch.device) -> None:
        super().__init__(meeting, rank, size)
        _meet(f"{meeting}-devices", rank, size)
        mailboxes, reason = None, "is not there on another rank"
        try:
            mailboxes = _MailboxLink(rank, size, device)
        except RuntimeError as error:
            reason = f"cannot be mapped: {first_line(error)}"
        # All or none: a rank alone with its mailboxes would wait for ever.
        opened = super().all_gather(torch.tensor([mailboxes is not None]))
        self._link: Link
        if mailboxes is not None and bool(opened.all()):
            self._link, self.description = mailboxes, "symmetric memory"
        else:
            logger.warning("ranks exchange through NCCL, which is slower: mapped memory %s", reason)
            self._link, self.description = _NcclLink(size, device), "NCCL"

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        if values.is_cuda:
            return self._link.all_gather(values)
        return super().all_gather(values)

    def gather_rows(self, words: torch.Tensor, counts: torch.Tensor, width: int) -> RaggedRows:
        """Every rank's rows; see `VocabShard.gather_rows`. The tensors lie on the device."""
        return self._link.gather_rows(words, counts, width)

    def rank_sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `values`, added in float32 from rank 0 on, in their dtype."""
        return self._link.rank_sum(values)


class _MailboxLink:
    """The `Link` of `sampling.device.exchange`.

    Raises:
        RuntimeError: the GPUs cannot map each other's memory.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        # Nothing here needs multicast, and each rank counts the GPUs from its own on.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        num_letters, num_received = letter_bytes(size) // WORD_BYTES, NUM_PROGRAMS * size
        num_packed = 2 * size * MAX_PACKED
        packed_words = num_packed * PACKED_BYTES // WORD_BYTES
        group: Any = dist.group.WORLD
        self._own = symmetric_memory.empty(
            packed_words + num_letters + num_received, dtype=torch.int32, device=device
        ).zero_()
        torch.cuda.synchronize(device)  # empty before others can write
        self._handle = symmetric_memory.rendezvous(self._own, group.group_name)

        def part_of(other: int, start: int, *shape: int) -> torch.Tensor:
            return self._handle.get_buffer(other, shape, torch.int32, packed_words + start)

        self._rank = rank
        self._mailboxes = Mailboxes(
            letters=tuple(part_of(other, 0, num_letters) for other in range(size)),
            packed=tuple(
                self._handle.get_buffer(other, (num_packed,), torch.int64, 0)
                for other in range(size)
            ),
            received=tuple(
                part_of(other, num_letters, NUM_PROGRAMS, size) for other in range(size)
            ),
            sent=torch.zeros(NUM_PROGRAMS, dtype=torch.int32, device=device),
        )

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        missing = -values.nbytes % WORD_BYTES
        if not missing:
            return gather_ranks(values, self._mailboxes, self._rank)
        flat = values.contiguous().view(-1).view(torch.uint8)
        padded = torch.nn.functional.pad(flat, (0, missing))
        gathered = gather_ranks(padded, self._mailboxes, self._rank)[:, : len(flat)].contiguous()
        return gathered.view(values.dtype).view(len(gathered), *values.shape)

    def rank_sum(self, values: torch.Tensor) -> torch.Tensor:
        return sum_ranks(values, self._mailboxes, self._rank)

    def gather_rows(self, words: torch.Tensor, counts: torch.Tensor, width: int) -> RaggedRows:
        return gather_rows(words, counts, width, self._mailboxes, self._rank)


class _NcclLink:
    """The `Link` of NCCL's all-gather."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size = size
        self._group = dist.new_group(backend="nccl")
        self.all_gather(torch.zeros(1, device=device))  # meets now: the meeting's file goes away

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        own = values.contiguous().view(-1).view(torch.uint8)
        gathered = own.new_empty(self._size * len(own))
        dist.all_gather_into_tensor(gathered, own, group=self._group)
        return gathered.view(values.dtype).view(self._size, *values.shape)

    def rank_sum(self, values: torch.Tensor) -> torch.Tensor:
        return ordered_sum(self.all_gather(values))

    def gather_rows(self, words: torch.Tensor, counts: torch.Tensor, width: int) -> RaggedRows:
        padded = torch.nn.functional.pad(words, (0, width - words.shape[1]))
        return RaggedRows(self.all_gather(padded), self.all_gather(counts))


def _meet(path: str, rank: int, size: int) -> None:
    """Make torch's group of the ranks, through which memory is mapped; nothing goes over it."""
    distributed: Any = dist  # its stubs are not whole
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the machine's name may not be resolved
    store = distributed.FileStore(path, size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
