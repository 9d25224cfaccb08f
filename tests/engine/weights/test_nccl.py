"""NCCL's communicator as vLLM's trainers form it; the library's calls are recorded in its place."""

from __future__ import annotations

import ctypes
import pickle
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

from engine.contracts.weights import InitGroup, WeightUpdateError
from engine.weights.nccl import BYTES, FLOAT32, ID_BYTES, KEY, NcclGroup, UniqueId, unique_id
from tests.engine.weights.grouped_rooms import LOCALHOST, free_port, group_of

CPU = torch.device("cpu")
ID = bytes(range(ID_BYTES))
WRAPPER = "vllm.distributed.device_communicators.pynccl_wrapper"


class Library:
    """NCCL's functions: they note their arguments, and fill what is broadcast with threes."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.blocks: dict[str, threading.Event] = {}
        self._code = code
        self.ncclGetErrorString = _Words()

    def __getitem__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append((name, *args))
            if name in self.blocks:
                self.blocks[name].wait(60)
            if name == "ncclBroadcast":
                ctypes.memset(args[1], 3, args[2].value)
            return self._code

        return call


class _Words:
    restype: Any = None

    def __call__(self, code: int) -> bytes:
        return b"invalid usage"


@pytest.fixture
def published() -> Iterator[type[ctypes.Structure]]:
    """vLLM's class of ids, in a module of its name."""
    module = types.ModuleType(WRAPPER)
    fields = {"_fields_": [("internal", ctypes.c_byte * ID_BYTES)], "__module__": WRAPPER}
    own = type("ncclUniqueId", (ctypes.Structure,), fields)
    module.ncclUniqueId = own  # type: ignore[attr-defined]
    parts = WRAPPER.split(".")
    parents = {".".join(parts[:n]): types.ModuleType(parts[n - 1]) for n in range(1, len(parts))}
    with pytest.MonkeyPatch.context() as patch:
        for name, each in (parents | {WRAPPER: module}).items():
            patch.setitem(sys.modules, name, each)
        yield own


def serve(port: int, raw: bytes) -> threading.Thread:
    """Serve a store as a trainer does, on a thread."""

    def run() -> None:
        distributed: Any = dist
        store = distributed.TCPStore(LOCALHOST, port, 2, is_master=True, use_libuv=False)
        store.set(KEY, raw)
        ended.wait(30)

    ended = threading.Event()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_the_id_is_that_of_the_trainer_s_store(published: Any) -> None:
    port = free_port()
    serve(port, pickle.dumps(published.from_buffer_copy(ID)))
    assert bytes(unique_id(group_of(port))) == ID


def test_an_id_that_is_something_else(published: Any) -> None:
    port = free_port()
    serve(port, pickle.dumps(print))
    with pytest.raises(WeightUpdateError, match=r"id holds builtins\.print"):
        unique_id(group_of(port))
    with pytest.raises(WeightUpdateError, match="127 bytes, NCCL's have 128"):
        unique_id(group_of(port, unique_id=ID[1:]))


def command() -> InitGroup:
    return group_of(1, unique_id=ID, forms_as="vllm", world_size=3)


def test_a_group_is_formed_and_receives_bytes() -> None:
    library = Library()
    group = NcclGroup(command(), 2, CPU, library)
    (form, _, size, own, rank), (total, *_, kind, _, _, _) = library.calls
    assert (form, size, bytes(own), rank) == ("ncclCommInitRank", 3, ID, 2)
    assert isinstance(own, UniqueId)
    assert (total, kind) == ("ncclAllReduce", FLOAT32)
    target = torch.zeros(5, dtype=torch.int16)
    group.receive(target)
    assert target.tolist() == [0x0303] * 5
    assert library.calls[2][3].value == 10
    assert library.calls[2][4] == BYTES
    group.close()
    assert library.calls[3][0] == "ncclCommDestroy"


@pytest.mark.parametrize("name", ["ncclCommInitRank", "ncclAllReduce"])
def test_a_peer_that_never_comes_is_waited_for_no_longer_than_the_time(name: str) -> None:
    """And where it comes later, the group that nobody waits for is left."""
    library, came = Library(), threading.Event()
    library.blocks = {name: came}
    before = set(threading.enumerate())
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        NcclGroup(replace(command(), timeout_s=0.2), 1, CPU, library)
    assert time.monotonic() - start < 10
    (late,) = set(threading.enumerate()) - before
    came.set()
    late.join(30)
    assert not late.is_alive()
    formed = ["ncclCommInitRank", "ncclAllReduce"]
    called = [call for call, *_ in library.calls]
    assert called == [*formed[: 1 + formed.index(name)], "ncclCommAbort"]


def test_an_error_of_the_library_has_its_words() -> None:
    with pytest.raises(RuntimeError, match="ncclCommInitRank: invalid usage"):
        NcclGroup(command(), 1, CPU, Library(code=5))
