"""A trainer that broadcasts a folder's tensors over gloo: ADDRESS PORT FOLDER NAME HOW...

The group is formed as SGLang's `init_custom_process_group` forms it.
"""

from __future__ import annotations

import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

BUFFER_BYTES = 3000


def main() -> None:
    address, port, folder, name, *ways = sys.argv[1:]
    tensors = load_file(Path(folder) / "model.safetensors")
    distributed: Any = c10d
    timeout = timedelta(seconds=60)
    store, rank, size = next(iter(rendezvous(f"tcp://{address}:{port}", 0, 2, timeout=timeout)))
    store = distributed.PrefixStore(name, store)
    group, _ = distributed._new_process_group_helper(
        size, rank, [], "gloo", store, group_name=name, timeout=timeout
    )
    distributed._world.pg_group_ranks[group] = {i: i for i in range(size)}
    for how in ways:
        for buffer in buffers(tensors, how):
            dist.broadcast(buffer, 0, group=group)
    dist.destroy_process_group(group)


def buffers(tensors: dict[str, torch.Tensor], how: str) -> list[torch.Tensor]:
    """What is broadcast: tensors alone, all bytes at once, or packed as vLLM or prime-rl does."""
    if how == "alone":
        return list(tensors.values())
    if how == "described":
        return described(tensors)
    if how == "misnamed":
        return described({f"other.{name}": tensor for name, tensor in tensors.items()})
    if how == "undescribable":
        return [torch.tensor([2]), torch.tensor([0])]
    raw = [tensor.contiguous().view(torch.uint8).view(-1) for tensor in tensors.values()]
    if how == "bucket":
        return [torch.cat(raw)]
    packed, some = [], []
    for each in raw:
        some.append(each)
        if sum(map(len, some)) > BUFFER_BYTES:
            packed.append(torch.cat(some))
            some = []
    return [*packed, torch.cat(some)] if some else packed


def described(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """As prime-rl's trainer does: parts, of each a pickle's length, the pickle, and the numbers."""
    names = sorted(tensors)
    parts = [names[:3], names[3:]]
    sent = [torch.tensor([len(parts)])]
    for part in parts:
        by_dtype: dict[torch.dtype, list[tuple[str, torch.Tensor]]] = {}
        for name in part:
            by_dtype.setdefault(tensors[name].dtype, []).append((name, tensors[name]))
        said = {
            dtype: [(name, tensor.shape, tensor.numel()) for name, tensor in items]
            for dtype, items in by_dtype.items()
        }
        raw = pickle.dumps(said)
        sent += [torch.tensor([len(raw)]), torch.tensor(list(raw), dtype=torch.uint8)]
        sent += [
            torch.cat([tensor.flatten() for _, tensor in items]) for items in by_dtype.values()
        ]
    return sent


if __name__ == "__main__":
    main()
