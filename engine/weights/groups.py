"""Groups of processes over which a trainer broadcasts weights.

A group is formed as SGLang and the trainers that follow it form theirs: torch's rendezvous at an
address, a store prefixed by the group's name, and a backend that torch's default group knows
nothing of. vLLM's trainers form NCCL's own communicator instead, see `nccl`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import InitGroup, WeightUpdateError
from engine.errors import first_line
from engine.weights.deadline import within
from engine.weights.described import Broadcast, described_tensors
from engine.weights.nccl import NcclGroup
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)

TRAINER = 0
"""The rank that broadcasts."""


class TorchGroup:
    """A process group of torch's, beside its default group."""

    def __init__(self, command: InitGroup, rank: int, backend: str) -> None:
        timeout = timedelta(seconds=command.timeout_s)
        address = f"tcp://{command.master_address}:{command.master_port}"
        meet = rendezvous(address, rank, command.world_size, timeout=timeout)
        store, rank, size = within(command.timeout_s, lambda: next(iter(meet)))
        store.set_timeout(timeout)
        distributed: Any = distributed_c10d
        group, _ = distributed._new_process_group_helper(
            size,
            rank,
            [],
            backend,
            distributed.PrefixStore(command.name, store),
            group_name=command.name,
            timeout=timeout,
        )
        distributed._world.pg_group_ranks[group] = {i: i for i in range(size)}
        self._group = group

    def receive(self, target: torch.Tensor) -> None:
        dist.broadcast(target, TRAINER, group=self._group)

    def close(self) -> None:
        dist.destroy_process_group(self._group)


def _check_host(command: InitGroup) -> None:
    """Refuse an address that no host has, for which torch would look until the time is over."""
    if not command.master_address:
        return  # an id of NCCL's names the host
    try:
        socket.getaddrinfo(command.master_address, command.master_port)
    except (OSError, UnicodeError) as error:
        raise WeightUpdateError(
            f"master_address {command.master_address!r} is no host's: {first_line(error)}",
            "bad_source",
        ) from error


class WeightGroups:
    """The groups that this rank is in, by name.

    Args:
        device: on which tensors are received.
    """

    def __init__(self, device: torch.device, exchange: RankExchange) -> None:
        self._device, self._rank = device, exchange.rank
        self._groups: dict[str, tuple[InitGroup, Broadcast]] = {}

    def form(self, command: InitGroup) -> None:
        """Form a group with the trainer and this engine's other ranks.

        vLLM's trainers end none, so that theirs takes the place of the one before.

        Raises:
            WeightUpdateError: there is one of the name, the address is no host's, or it does not
                form in time.
        """
        if command.name in self._groups and command.forms_as == "vllm":
            self.leave(command.name)
        if command.name in self._groups:
            raise WeightUpdateError(
                f"there is a group {command.name!r}; end it first, or name another", "bad_source"
            )
        rank = command.rank_offset + self._rank
        if not 0 < rank < command.world_size:
            raise WeightUpdateError(
                f"rank {rank} (rank_offset {command.rank_offset}) is not within a group of "
                f"world_size {command.world_size}, whose rank 0 is the trainer",
                "bad_source",
            )
        _check_host(command)
        backend = command.backend or ("nccl" if self._device.type == "cuda" else "gloo")
        try:
            group: Broadcast = (
                NcclGroup(command, rank, self._device)
                if command.forms_as == "vllm" and backend == "nccl"
                else TorchGroup(command, rank, backend)
            )
        except (RuntimeError, TimeoutError, ValueError, dist.DistError) as error:
            raise WeightUpdateError(
                f"group {command.name!r} of {command.world_size} did not form at "
                f"{command.master_address}:{command.master_port} within {command.timeout_s:g} s: "
                f"{first_line(error)}",
                "group_timeout",
            ) from error
        self._groups[command.name] = command, group

    def has(self, name: str) -> bool:
        """Whether there is a group of the name."""
        return name in self._groups

    def described(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that rank 0 of a group describes and broadcasts, on the device."""
        return described_tensors(self._of(name)[1], self._device)

    def leave(self, name: str) -> None:
        """Leave a group whose trainer may be gone, or whose broadcasts cannot be received."""
        try:
            self.end(name)
        except RuntimeError as error:
            logger.warning("group %r could not be ended: %s", name, first_line(error))

    def end(self, name: str) -> None:
        """Leave a group; raises `WeightUpdateError` if there is none of the name."""
        _, group = self._of(name)
        del self._groups[name]
        group.close()

    def broadcast(
        self, name: str, infos: Sequence[TensorInfo], *, packed: bool | None, in_one: bool
    ) -> Iterator[torch.Tensor]:
        """The tensors that rank 0 of a group broadcasts, on the host or the device.

        Args:
            packed: they come many at once; None is as the group was made. in_one: all at once.

        Raises:
            WeightUpdateError: there is no such group.
        """
        command, group = self._of(name)
        if in_one:
            yield from self._buffer(group, infos)
        elif command.packed if packed is None else packed:
            for some in buffers(infos, command.buffer_bytes):
                yield from self._buffer(group, some)
        else:
            for info in infos:
                target = torch.empty(info.shape, dtype=info.dtype, device=self._device)
                group.receive(target)
                yield target

    def _buffer(self, group: Broadcast, infos: Sequence[TensorInfo]) -> Iterator[torch.Tensor]:
        """Tensors that come as one of all their bytes."""
        sizes = [prod(info.shape) * info.dtype.itemsize for info in infos]
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        group.receive(buffer)
        for info, (start, end) in zip(infos, pairwise(accumulate(sizes, initial=0)), strict=True):
            own = buffer[start:end].clone()  # which is aligned
            yield own.view(info.dtype).view(info.shape)

    def _of(self, name: str) -> tuple[InitGroup, Broadcast]:
        if name not in self._groups:
            known = ", ".join(sorted(self._groups)) or "none"
            raise WeightUpdateError(
                f"there is no group {name!r}; there are: {known}", "unknown_group"
            )
        return self._groups[name]


def buffers(infos: Sequence[TensorInfo], num_bytes: int) -> Iterator[Sequence[TensorInfo]]:
    """Tensors by the buffers in which vLLM's trainers send them: each ends once it is over full."""
    some: list[TensorInfo] = []
    total = 0
    for info in infos:
        some.append(info)
        total += prod(info.shape) * info.dtype.itemsize
        if total > num_bytes:
            yield some
            some, total = [], 0
    if some:
        yield some
