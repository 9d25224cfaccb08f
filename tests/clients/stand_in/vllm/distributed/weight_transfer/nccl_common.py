"""The trainer's end of a transfer: a group of gloo's where vLLM has NCCL's communicator."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

NAME = "vllm"
TIMEOUT = timedelta(seconds=60)


class Endpoint:
    """Rank 0 of a group; `group` has the fields that TRL clears when it is done."""

    def __init__(self, address: str, port: int, world_size: int) -> None:
        meet = rendezvous(f"tcp://{address}:{port}", 0, world_size, timeout=TIMEOUT)
        store, rank, size = next(iter(meet))
        distributed: Any = distributed_c10d
        prefixed = distributed.PrefixStore(NAME, store)
        self._group, _ = distributed._new_process_group_helper(
            size, rank, [], "gloo", prefixed, group_name=NAME, timeout=TIMEOUT
        )
        distributed._world.pg_group_ranks[self._group] = {i: i for i in range(size)}
        self.group = SimpleNamespace(store=store, socket=None)

    def broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, 0, group=self._group)


def trainer_init(init_info: Mapping[str, Any]) -> Endpoint:
    """Join the group that the server was asked to form."""
    assert init_info["packed"], "TRL sends packed tensors"
    address, port = init_info["master_address"], init_info["master_port"]
    return Endpoint(address, port, init_info["world_size"])
