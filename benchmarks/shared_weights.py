"""Random weights of a server's shapes: in files, or on the GPU of a trainer that shares them."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch.multiprocessing import reductions

FILE_BYTES = 4 << 30
BLOCK = 1 << 24
"""Random numbers that are written over and over."""


class Info(NamedTuple):
    """A weight of the server's."""

    name: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes in bfloat16."""
        return 2 * torch.Size(self.shape).numel()


def random_tensor(info: Info, block: torch.Tensor) -> torch.Tensor:
    """A tensor of the numbers of a block, over and over."""
    count = torch.Size(info.shape).numel()
    return block.repeat(-(-count // BLOCK))[:count].clone().view(info.shape)


def random_block(seed: int, device: str) -> torch.Tensor:
    """Small random numbers in bfloat16."""
    drawn = torch.randn(BLOCK, generator=torch.Generator().manual_seed(seed))
    return (0.02 * drawn).bfloat16().to(device)


def write_files(infos: list[Info], folder: Path) -> None:
    """Write a checkpoint in files of a few GiB."""
    folder.mkdir()
    block, held = random_block(1, "cpu"), dict[str, torch.Tensor]()
    for index, info in enumerate(infos):
        held[info.name] = random_tensor(info, block)
        is_full = sum(each.nbytes for each in held.values()) > FILE_BYTES
        if is_full or index == len(infos) - 1:
            save_file(held, folder / f"{index}.safetensors")
            held = {}


def train(pipe: Connection) -> None:
    """Share tensors on the GPU as they are asked for, until None is: a trainer's process."""
    reduce_tensor: Any = reductions.reduce_tensor  # torch's types leave it out, and what is below
    cuda: Any = torch.cuda
    own, block = str(torch.cuda.get_device_properties(0).uuid), random_block(2, "cuda")
    held, asked = list[torch.Tensor](), None
    while (wanted := pipe.recv()) is not None:
        infos, one = wanted
        if wanted != asked:
            held, asked = [], wanted
            cuda.ipc_collect()
            cuda.empty_cache()
            held = one_buffer(infos, block) if one else [random_tensor(i, block) for i in infos]
            torch.cuda.synchronize()
        handles = [{own: reduce_tensor(tensor)} for tensor in held]
        pipe.send(pickle.dumps(handles[0] if one else handles))


def one_buffer(infos: list[Info], block: torch.Tensor) -> list[torch.Tensor]:
    """All tensors as the bytes of one."""
    buffer = torch.empty(sum(info.num_bytes for info in infos), dtype=torch.uint8, device="cuda")
    parts = torch.split(buffer, [info.num_bytes for info in infos])
    for info, part in zip(infos, parts, strict=True):
        part.copy_(random_tensor(info, block).view(-1).view(torch.uint8))
    return [buffer]


class Trainer:
    """A process with weights on the GPU."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=train, args=(other,), daemon=True)
        self._process.start()

    def handles(self, infos: list[Info], *, one: bool) -> bytes:
        """The pickled handle of one buffer with all tensors, or of each tensor."""
        self._pipe.send((infos, one))
        raw: bytes = self._pipe.recv()
        return raw

    def end(self) -> None:
        """Let the process end, and its memory go."""
        self._pipe.send(None)
        self._process.join()
