"""Memory of a GPU that is unmapped and mapped again under captured graphs."""

from __future__ import annotations

import pytest
import torch

from engine.contracts.control import MemoryPart
from engine.memory.mapped import MappedMemory

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
MIB = 1 << 20


def free_bytes() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def made(memory: MappedMemory, part: MemoryPart, num_bytes: int, value: float) -> torch.Tensor:
    with memory.making(part):
        return torch.full((num_bytes // 4,), value, device=DEVICE)


def test_a_part_is_given_back_and_has_its_contents_and_addresses_again() -> None:
    memory = MappedMemory(DEVICE)
    weights = made(memory, "weights", 512 * MIB, 3.0)
    cache = made(memory, "kv_cache", 256 * MIB, 5.0)
    address, awake = weights.data_ptr(), free_bytes()
    memory.give_back("weights", keep=True)
    memory.give_back("kv_cache", keep=False)
    assert free_bytes() >= awake + 0.95 * 768 * MIB
    memory.take_again("weights")
    assert bool((weights == 3.0).all())
    assert weights.data_ptr() == address
    memory.take_again("kv_cache")
    assert not cache.any(), "zeros, where nothing was kept"
    assert abs(free_bytes() - awake) < 64 * MIB


def test_what_was_kept_is_let_go() -> None:
    memory = MappedMemory(DEVICE)
    weights = made(memory, "weights", 64 * MIB, 3.0)
    memory.give_back("weights", keep=True)
    memory.give_back("weights", keep=False)
    memory.take_again("weights")
    assert not weights.any()


def test_a_graph_that_was_captured_before_reads_what_is_there_after() -> None:
    memory = MappedMemory(DEVICE)
    weights = made(memory, "weights", 64 * MIB, 2.0)
    with memory.making("weights"):
        small = torch.full((8,), 1.0, device=DEVICE)
    out = torch.zeros(8, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out.copy_(weights[:8] + small)
    memory.give_back("weights", keep=True)
    memory.take_again("weights")
    graph.replay()
    assert out.tolist() == [3.0] * 8
    weights.fill_(4.0)  # as an update in place
    graph.replay()
    assert out.tolist() == [5.0] * 8
