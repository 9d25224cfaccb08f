from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import CacheConfig, ConfigError, EngineConfig, ModelConfig, SchedulerConfig
from engine.startup.build import build_engine
from engine.startup.memory import Limits, MemoryProfile
from tests.engine.tiny_models import write_model

GIB = 1 << 30


def test_the_largest_steps_fit_the_small_cache() -> None:
    for limits in (Limits(256, 8192, 40960, 16), Limits(4, 16, 8, 16), Limits(1, 64, 100, 8)):
        each = -(-(limits.tokens_each + 1) // limits.block_size)
        assert limits.max_rows * each < limits.num_blocks
        assert -(-limits.tokens_alone // limits.block_size) < limits.num_blocks
        assert limits.max_rows * limits.tokens_each <= limits.max_step_tokens


def test_the_cache_gets_what_is_left() -> None:
    profile = MemoryProfile(total=100 * GIB, foreign=GIB, fixed=20 * GIB, step=4 * GIB, graphs=GIB)
    assert profile.cache_bytes(0.9) == 64 * GIB


def test_a_model_that_does_not_fit_is_told_with_the_numbers() -> None:
    profile = MemoryProfile(total=16 * GIB, foreign=GIB, fixed=15 * GIB, step=GIB, graphs=GIB)
    with pytest.raises(ConfigError) as error:
        profile.cache_bytes(0.9)
    for number in ("0.9", "16.00 GiB", "14.40 GiB", "15.00 GiB", "1.00 GiB"):
        assert number in str(error.value)


@pytest.mark.gpu
def test_a_built_engine_stays_within_its_share(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path)
    free, total = torch.cuda.mem_get_info()
    share = (total - free + 4 * GIB) / total
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(model=str(tmp_path), dtype="float32"),
            cache=CacheConfig(memory_utilization=share),
            scheduler=SchedulerConfig(max_rows=16, max_step_tokens=256),
        )
    )
    now_free, _ = torch.cuda.mem_get_info()
    assert total - now_free <= total * share
    assert engine.info.num_blocks > 1000


@pytest.mark.gpu
def test_no_room_for_a_cache_is_an_error(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path)
    with pytest.raises(ConfigError, match="no memory is left"):
        build_engine(
            EngineConfig(
                model=ModelConfig(model=str(tmp_path), dtype="float32"),
                cache=CacheConfig(memory_utilization=0.001),
            )
        )
