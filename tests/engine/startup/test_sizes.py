"""The sizes of the KV cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from engine.config import CacheConfig, ConfigError, EngineConfig, ModelConfig
from engine.startup.assembly import Assembly
from engine.startup.sizes import size_cache
from sampling.device.ranks import RankExchange


def test_a_cache_that_the_machine_cannot_hold_is_told_by_its_flag() -> None:
    config = EngineConfig(model=ModelConfig(model="m"), cache=CacheConfig(cpu_bytes=1 << 60))
    assembly = SimpleNamespace(device=torch.device("cpu"), bytes_per_block=1 << 20)
    with pytest.raises(ConfigError, match=r"--cpu-kvcache-space 1.07374e\+09 is over the .* GiB"):
        size_cache(config, cast(Assembly, assembly), 2048, cast(RankExchange, None))
