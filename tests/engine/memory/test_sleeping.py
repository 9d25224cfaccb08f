"""Memory of a CPU that is given back, and memory that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, ModelConfig
from engine.errors import ControlError
from engine.memory.sleeping import FixedMemory, HostMemory, drop_pages
from engine.startup.device import make_sleeping

CPU = torch.device("cpu")


def resident_bytes() -> int:
    """Memory of this process that is not given back."""
    line = next(x for x in Path("/proc/self/status").read_text().split("\n") if "RssAnon" in x)
    return int(line.split()[1]) << 10


def test_the_cache_s_pages_are_given_back_and_come_as_zeros() -> None:
    memory = HostMemory()
    cache = torch.full((64 << 20,), 7, dtype=torch.uint8)
    memory.note("kv_cache", [cache])
    before = resident_bytes()
    memory.give_back("weights")
    assert resident_bytes() > before - (8 << 20)
    memory.give_back("kv_cache")
    assert resident_bytes() < before - (56 << 20)
    memory.take_again("kv_cache")
    assert not cache[1 << 20 : 63 << 20].any()
    cache.fill_(3)
    assert bool((cache == 3).all())


def test_what_shares_a_page_with_others_is_left_alone() -> None:
    buffer = torch.full((3 * 4096,), 7, dtype=torch.uint8)
    part = buffer[100 : 100 + 2 * 4096]
    drop_pages(part)
    assert bool((buffer[:100] == 7).all())
    assert bool((buffer[100 + 2 * 4096 :] == 7).all())


def test_memory_is_fixed_unless_sleep_was_asked_for() -> None:
    config = EngineConfig(model=ModelConfig(model="none"))
    memory = make_sleeping(config, CPU)
    assert isinstance(memory, FixedMemory)
    with pytest.raises(ControlError, match="--enable-sleep-mode"):
        memory.copy("kv_cache", keep=False)
    asked = EngineConfig(model=ModelConfig(model="none"), sleep_mode=True)
    assert isinstance(make_sleeping(asked, CPU), HostMemory)
