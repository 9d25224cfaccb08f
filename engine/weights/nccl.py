"""NCCL's own communicator, formed as vLLM's trainers form theirs.

Rank 0 serves a store, and in it the communicator's id as a pickle of a C struct, under the key of
the first object that it broadcasts. All ranks then sum one number, which ends the forming.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import time
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from engine.contracts.weights import InitGroup, WeightUpdateError
from engine.weights.deadline import within

KEY = "broadcast_from/0/0"
"""Of the first object that rank 0 broadcasts."""
ID_BYTES = 128
BYTES, FLOAT32, SUM, TRAINER = 1, 7, 0, 0
"""NCCL's codes of types and of an operation, and the rank that broadcasts."""
LOOK_S = 0.001
"""Seconds between two looks whether all have summed."""


class UniqueId(ctypes.Structure):
    """The id of a communicator, `ncclUniqueId`."""

    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


class _IdUnpickler(pickle.Unpickler):
    """Knows the struct of an id, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "ncclUniqueId":
            return UniqueId
        if (module, name) == ("_ctypes", "_unpickle"):
            return super().find_class(module, name)
        raise WeightUpdateError(f"the group's id holds {module}.{name}", "bad_source")


def unique_id(command: InitGroup) -> UniqueId:
    """The id that a command brings, or that rank 0 serves at its address.

    Raises:
        WeightUpdateError: it is not an id.
        DistError, TimeoutError: nobody serves it in time.
    """
    if command.unique_id is not None:
        if len(command.unique_id) != ID_BYTES:
            raise WeightUpdateError(
                f"the group's id has {len(command.unique_id)} bytes, NCCL's have {ID_BYTES}",
                "bad_source",
            )
        return UniqueId.from_buffer_copy(command.unique_id)
    served = within(command.timeout_s, partial(_served, command))
    own = _IdUnpickler(io.BytesIO(served)).load()
    if not isinstance(own, UniqueId):
        raise WeightUpdateError("the group's id is no NCCL id", "bad_source")
    return own


def _served(command: InitGroup) -> bytes:
    """The pickle of the id that rank 0 serves."""
    distributed: Any = dist  # its stubs are not whole
    store = distributed.TCPStore(
        command.master_address,
        command.master_port,
        command.world_size,
        is_master=False,
        timeout=timedelta(seconds=command.timeout_s),
        use_libuv=False,
    )
    served: bytes = store.get(KEY)
    return served


class NcclGroup:
    """The `Broadcast` of a communicator of NCCL.

    Args:
        library: NCCL's, by `ctypes`; None is the one that torch has loaded.

    Raises:
        TimeoutError: not all of the group's processes come in time.
    """

    def __init__(
        self, command: InitGroup, rank: int, device: torch.device, library: Any = None
    ) -> None:
        self._library = library or ctypes.CDLL("libnccl.so.2")
        self._device, self._comm = device, ctypes.c_void_p()
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        deadline = time.monotonic() + command.timeout_s
        own = unique_id(command)
        join = partial(self._join, command.world_size, own, rank, deadline)
        within(max(deadline - time.monotonic(), 0), join)

    def _join(self, size: int, own: UniqueId, rank: int, deadline: float) -> ctypes.c_void_p:
        """Meet the others, for whom NCCL waits without end: this runs in a thread of its own.

        Where it goes on after the deadline nobody waits for it, and it leaves the group.
        """
        on_gpu = self._device.type == "cuda"
        with torch.cuda.device(self._device) if on_gpu else nullcontext():
            self._call("CommInitRank", ctypes.byref(self._comm), size, own, rank)
            self._check_time(deadline)
            first = torch.zeros(1, device=self._device)
            address, count = ctypes.c_void_p(first.data_ptr()), ctypes.c_size_t(1)
            self._call("AllReduce", address, address, count, FLOAT32, SUM, self._comm, self._stream)
            if on_gpu:  # a kernel without its peers would keep whoever synchronizes
                summed = torch.cuda.current_stream(self._device).record_event()
                while not summed.query() and time.monotonic() < deadline:
                    time.sleep(LOOK_S)
            self._check_time(deadline)
        return self._comm

    def _check_time(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            self._call("CommAbort", self._comm)
            raise TimeoutError("the others came too late")

    def receive(self, target: torch.Tensor) -> None:
        """Overwrite a tensor by rank 0's; NCCL broadcasts any type as bytes."""
        address, count = ctypes.c_void_p(target.data_ptr()), ctypes.c_size_t(target.nbytes)
        self._call("Broadcast", address, address, count, BYTES, TRAINER, self._comm, self._stream)
        self._wait()

    def close(self) -> None:
        """Leave the group."""
        self._call("CommDestroy", self._comm)

    @property
    def _stream(self) -> ctypes.c_void_p:
        on_gpu = self._device.type == "cuda"
        return ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream if on_gpu else 0)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _call(self, name: str, *args: Any) -> None:
        code = self._library[f"nccl{name}"](*args)
        if code:
            words = self._library.ncclGetErrorString(code).decode()
            raise RuntimeError(f"nccl{name}: {words}")
