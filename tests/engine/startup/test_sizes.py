"""The sizes of the KV cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from engine.config import CacheConfig, ConfigError, EngineConfig, ModelConfig, SchedulerConfig
from engine.startup.assembly import Assembly
from engine.startup.sizes import SNAPSHOT_TOKENS, CacheSize, check_states, size_cache, snapshots_of
from sampling.device.ranks import LoneRank, RankExchange


def test_a_cache_that_the_machine_cannot_hold_is_named_by_its_flag() -> None:
    config = EngineConfig(model=ModelConfig(model="m"), cache=CacheConfig(cpu_bytes=1 << 60))
    assembly = SimpleNamespace(device=torch.device("cpu"), bytes_per_block=1 << 20, state_specs=())
    with pytest.raises(ConfigError, match=r"--cpu-kvcache-space 1.07374e\+09 is over the .* GiB"):
        size_cache(config, cast(Assembly, assembly), 2048, cast(RankExchange, None))


def test_snapshots_take_what_keys_and_values_leave_them() -> None:
    """One for so many tokens of keys, within half of the memory."""
    assert snapshots_of(1 << 30, 0, 100.0) == 0
    small = snapshots_of(1 << 30, 1000, 100.0)
    left = (1 << 30) - small * 1000
    assert left / 100 / small == pytest.approx(SNAPSHOT_TOKENS, rel=1e-3)
    assert snapshots_of(1 << 30, 1 << 20, 1.0) == 512
    assert snapshots_of(1 << 30, 1 << 20, 0.0) == 512


def test_states_of_too_many_rows_are_refused_with_the_size_of_one() -> None:
    config = EngineConfig(model=ModelConfig(model="m"), scheduler=SchedulerConfig(max_rows=64))
    check_states(config, 0, 0)
    check_states(config, 67 << 20, 1 << 20)
    with pytest.raises(ConfigError, match=r"--max-num-seqs 64: .* 1.0 MiB a row.* at most 40"):
        check_states(config, 42 << 20, 1 << 20)


def sized(num_blocks: int, context: int, asked: int | None = None) -> CacheSize:
    """The sizes of a cache of so many blocks of 16 tokens, of which one is scratch."""
    config = EngineConfig(
        model=ModelConfig(model="m", max_model_len=asked), cache=CacheConfig(num_blocks=num_blocks)
    )
    assembly = SimpleNamespace(device=torch.device("cpu"), bytes_per_block=1 << 10, state_specs=())
    return size_cache(config, cast(Assembly, assembly), context, LoneRank())


def test_the_first_block_holds_no_context() -> None:
    assert sized(9, 128) == CacheSize(9, None, 128)
    assert sized(9, 128, 128) == CacheSize(9, None, 128)
    assert sized(9, 129) == CacheSize(9, None, 128), "lowered to what the other blocks hold"
    assert sized(2, 128) == CacheSize(2, None, 16)


@pytest.mark.parametrize(
    ("num_blocks", "context", "asked", "words"),
    [
        (9, 129, 129, r"has 9 blocks .* needs 10 .*--max-model-len to at most 128 "),
        (4, 128, 64, r"has 4 blocks .* needs 9 .*--max-model-len to at most 48 "),
    ],
)
def test_too_few_blocks_for_what_was_asked(
    num_blocks: int, context: int, asked: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        sized(num_blocks, context, asked)
