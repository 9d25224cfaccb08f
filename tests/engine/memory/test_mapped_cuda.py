"""Memory of a GPU that is unmapped and mapped again under captured graphs."""

from __future__ import annotations

import pytest
import torch

from engine.contracts.control import MemoryPart
from engine.errors import ControlError
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


def sleep(memory: MappedMemory, part: MemoryPart, *, keep: bool) -> None:
    memory.copy(part, keep=keep)
    memory.give_back(part)


def wake(memory: MappedMemory, part: MemoryPart) -> None:
    memory.take_again(part)
    memory.restore(part)


def test_a_part_is_given_back_and_has_its_contents_and_addresses_again() -> None:
    memory = MappedMemory(DEVICE)
    weights = made(memory, "weights", 512 * MIB, 3.0)
    cache = made(memory, "kv_cache", 256 * MIB, 5.0)
    memory.note("kv_cache", [cache])
    address, awake = weights.data_ptr(), free_bytes()
    sleep(memory, "weights", keep=True)
    sleep(memory, "kv_cache", keep=False)
    assert free_bytes() >= awake + 0.95 * 768 * MIB
    wake(memory, "weights")
    assert bool((weights == 3.0).all())
    assert weights.data_ptr() == address
    wake(memory, "kv_cache")
    assert not cache.any(), "zeros, where nothing was kept"
    assert abs(free_bytes() - awake) < 64 * MIB


@pytest.mark.parametrize("deepens", [False, True])
def test_only_what_was_noted_is_let_go(deepens: bool) -> None:
    """A table and the slots of adapters are kept, wherever torch has put them.

    The slots come into a block that was freed, and beside the table are blocks that nobody has.
    """
    memory = MappedMemory(DEVICE)
    weights = made(memory, "weights", 64 * MIB, 3.0)
    with memory.making("weights"):
        table = torch.arange(MIB, dtype=torch.float32, device=DEVICE)
        freed = torch.full((8 * MIB,), 9.0, device=DEVICE)
        place = freed.data_ptr()
        del freed
        slots = torch.full((8 * MIB,), 4.0, device=DEVICE)
        assert slots.data_ptr() == place
        few = torch.full((8,), 7.0, device=DEVICE)
        last = torch.full((16 * MIB,), 9.0, device=DEVICE)
        del last
    memory.note("weights", [weights])
    if deepens:
        sleep(memory, "weights", keep=True)
    sleep(memory, "weights", keep=False)
    wake(memory, "weights")
    assert not weights.any()
    assert torch.equal(table.cpu(), torch.arange(MIB, dtype=torch.float32))
    assert bool((slots == 4.0).all())
    assert bool((few == 7.0).all())
    unused = memory._parts["weights"].unused()
    assert any(end - start >= 60 * MIB for start, end in unused), "which no host has to keep"


def test_a_gpu_without_room_leaves_a_part_asleep() -> None:
    memory = MappedMemory(DEVICE)
    weights = made(memory, "weights", 512 * MIB, 3.0)
    more = made(memory, "weights", 256 * MIB, 4.0)
    sleep(memory, "weights", keep=True)
    taken = torch.empty(free_bytes() - 640 * MIB, dtype=torch.uint8, device=DEVICE)
    left = free_bytes()
    with pytest.raises(ControlError, match="'weights', which stays asleep: cuMemCreate") as no:
        memory.take_again("weights")
    assert no.value.code == "no_memory"
    assert abs(free_bytes() - left) < 64 * MIB, "what was mapped of it is given back"
    with pytest.raises(torch.OutOfMemoryError):
        made(memory, "kv_cache", 2 * left, 1.0)
    del taken
    free_bytes()
    wake(memory, "weights")
    assert bool((weights == 3.0).all())
    assert bool((more == 4.0).all())


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
    sleep(memory, "weights", keep=True)
    wake(memory, "weights")
    graph.replay()
    assert out.tolist() == [3.0] * 8
    weights.fill_(4.0)  # as an update in place
    graph.replay()
    assert out.tolist() == [5.0] * 8
