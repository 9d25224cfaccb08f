from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.attention.plain import PlainAttention
from engine.batch import RequestRows
from engine.config import (
    CacheConfig,
    CacheDtype,
    ConfigError,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.memory.pages import KVCache
from engine.startup import assembly
from engine.startup.assembly import make_attention
from engine.startup.build import build_engine
from engine.startup.memory import Limits, MemoryProfile, measure
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.tiny_models import write_model
from tests.engine.traffic import FRONTEND, Inbox, request, run

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


def test_a_cache_without_layers_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in which no layer attends is measured where its cache would be."""

    class AskedError(Exception):
        """Memory of a device was asked for."""

    def asked(device: torch.device) -> int:
        raise AskedError(device)

    monkeypatch.setattr(torch.cuda, "memory_allocated", asked)
    cache = KVCache([], 10, 16, torch.float32, torch.device("meta"))
    with pytest.raises(AskedError, match="meta"):
        measure(None, cache, Limits(4, 16, 64, 16))  # type: ignore[arg-type]


def test_no_kernels_are_made_ready_for_layers_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = RequestRows(4, 64, 16, torch.device("cpu"), 0)
    monkeypatch.setattr(rows, "device", torch.device("cuda"))
    monkeypatch.setattr(assembly, "kernels_run_on", lambda device: True)
    cache = KVCache([], 10, 16, torch.float32, torch.device("cpu"))
    assert isinstance(make_attention(rows)([], cache), PlainAttention)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_an_engine_of_a_model_without_attention(dtype: CacheDtype, tmp_path: Path) -> None:
    config = config_of("lfm2")
    config.layer_types = ["conv"] * 4
    write_hybrid(config, tmp_path)
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(model=str(tmp_path), dtype="float32"),
            cache=CacheConfig(memory_utilization=0.5, dtype=dtype),
            scheduler=SchedulerConfig(max_rows=16, max_step_tokens=256),
        )
    )
    inbox = Inbox()
    for handle, length in enumerate((20, 3, 100)):
        engine.submit(FRONTEND, request(handle, [5] * length, max_tokens=5))
    run(engine, inbox)
    assert [len(inbox.tokens[handle, 0]) for handle in range(3)] == [5, 5, 5]
    assert engine.stats().failed_steps == 0


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
