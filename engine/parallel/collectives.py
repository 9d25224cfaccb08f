"""What ranks exchange inside a step: gathered tensors, and their sums in rank order.

A sum over ranks is taken in float32 from rank 0 on, whatever carries the parts, so that its bits
depend neither on the size of a step nor on an algorithm chosen by size. NCCL and gloo's own
reductions promise no order, so nothing is reduced by them: parts are gathered, and every rank adds
them up alike.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist

from sampling.device.ranks import RankExchange

Input = TypeVar("Input")
LOCALHOST = "127.0.0.1"
FOREVER = timedelta(days=365)


class GlooExchange:
    """The `RankExchange` of ranks on one machine, over gloo and its loopback sockets.

    It waits until all ranks have come. One thread at a time may use it.

    Args:
        meeting: a file that no earlier ranks have met at, the same for all.

    Attributes:
        num_begun: exchanges this rank has come to; one that others wait for has come to fewer.
    """

    def __init__(self, meeting: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.num_begun = 0
        distributed: Any = dist  # its stubs are not whole
        gloo = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=LOCALHOST)]
        options._timeout = FOREVER  # `RankProcesses` watches for ranks that keep others waiting
        options._threads = 1
        store = distributed.FileStore(str(meeting), size)
        self._group = gloo(store, rank, size, options)

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        self.num_begun += 1
        own = values.contiguous().view(-1).view(torch.uint8)  # gloo does not know every dtype
        gathered = torch.empty(self.size * len(own), dtype=torch.uint8)
        self._group._allgather_base(gathered, own).wait()
        return gathered.view(values.dtype).view(self.size, *values.shape)


@runtime_checkable
class Summing(Protocol):
    """An exchange with a way of its own to the sum that `rank_sum` defines."""

    def rank_sum(self, values: torch.Tensor) -> torch.Tensor: ...


def rank_sum(values: torch.Tensor, exchange: RankExchange) -> torch.Tensor:
    """The sum of all ranks' `values`, added in float32 from rank 0 on, in their dtype."""
    if isinstance(exchange, Summing):
        return exchange.rank_sum(values)
    return ordered_sum(exchange.all_gather(values))


def ordered_sum(parts: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' parts [size, ...] as `rank_sum` defines it."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts.dtype)


def summed(
    product: Callable[[Input], torch.Tensor], exchange: RankExchange
) -> Callable[[Input], torch.Tensor]:
    """A product of which each rank computes a part, as the sum of the parts."""
    if exchange.size == 1:
        return product
    return lambda x: rank_sum(product(x), exchange)
