"""The sizes of the KV cache and of the context it holds."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

import torch

from engine.config import ConfigError, EngineConfig
from engine.contracts.model import CausalLM
from engine.memory.states import OTHER_SLOTS, bytes_per_slot
from engine.startup.assembly import Assembly
from engine.startup.memory import Limits, measure
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)

SNAPSHOT_TOKENS = 256
"""Tokens of keys and values to a snapshot: as many as a reply has from one to the next."""


def longest_context(config: EngineConfig, model: CausalLM) -> int:
    """The context that was asked for, or the model's; raises `ConfigError`."""
    asked = config.model.max_model_len
    if asked is None:
        return model.max_position
    check_context(asked, model.max_position)
    return asked


def check_context(asked: int, limit: int) -> None:
    """Refuse a context length over a model's positions; raises `ConfigError`."""
    if asked < 1:
        raise ConfigError(f"--max-model-len must be at least 1, got {asked}")
    if asked > limit:
        raise ConfigError(f"--max-model-len {asked} is over the {limit} positions of the model")


def check_cpu_cache(asked: int) -> None:
    """Refuse a cache of more bytes than the machine has of memory; raises `ConfigError`."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if asked > memory:
        raise ConfigError(
            f"--cpu-kvcache-space {asked / 2**30:g} is over the {memory / 2**30:.1f} GiB of memory "
            "of this machine"
        )


class CacheSize(NamedTuple):
    """How much layers keep.

    Attributes:
        num_blocks: of keys and values. num_snapshots: of states; None where none are kept.
        max_model_len: the context that the blocks can hold.
    """

    num_blocks: int
    num_snapshots: int | None
    max_model_len: int


def size_cache(
    config: EngineConfig, assembly: Assembly, max_model_len: int, exchange: RankExchange
) -> CacheSize:
    """Divide the memory that is left among blocks and snapshots, as the rank with the least can.

    Raises:
        ConfigError: they hold less than was asked for.
    """
    block_size = config.cache.block_size
    per_block, per_state = assembly.bytes_per_block, bytes_per_slot(assembly.state_specs)
    num_bytes = _cache_bytes(config, assembly, max_model_len, exchange)
    num_snapshots = config.cache.num_snapshots
    if num_snapshots is None:
        num_snapshots = snapshots_of(num_bytes, per_state, per_block / block_size)
    needed = -(-max_model_len // block_size) + 1
    num_blocks = config.cache.num_blocks
    if num_blocks is None and per_block:
        num_blocks = (num_bytes - num_snapshots * per_state) // per_block
    elif num_blocks is None:  # no layer attends: blocks are numbers
        num_blocks = config.scheduler.max_rows * needed
    sizes = torch.tensor([num_blocks, num_snapshots])
    num_blocks, num_snapshots = exchange.all_gather(sizes).amin(0).tolist()
    kept = num_snapshots if per_state else None
    if num_blocks >= needed:
        return CacheSize(num_blocks, kept, max_model_len)
    fits = max(num_blocks - 1, 0) * block_size
    if config.model.max_model_len is not None or fits < 1:
        raise ConfigError(
            f"the KV cache has {num_blocks} blocks of {block_size} tokens "
            f"({num_blocks * per_block / 2**20:.0f} MiB), a context of {max_model_len} tokens "
            f"needs {needed} ({needed * per_block / 2**20:.0f} MiB): lower --max-model-len to at "
            f"most {fits} or give the cache more memory"
        )
    logger.warning("context length lowered from %d to the %d the cache holds", max_model_len, fits)
    return CacheSize(num_blocks, kept, fits)


def snapshots_of(num_bytes: int, per_state: int, per_token: float) -> int:
    """The number of snapshots in so many bytes, the rest of which is for keys and values.

    One for every `SNAPSHOT_TOKENS` tokens of keys and values, within half of the bytes.

    Args:
        per_state: bytes of a snapshot, 0 where there are none.
        per_token: bytes of a token's keys and values.
    """
    if not per_state:
        return 0
    return int(num_bytes // max(2 * per_state, per_state + SNAPSHOT_TOKENS * per_token))


def check_states(config: EngineConfig, num_bytes: int, per_state: int) -> None:
    """Refuse more rows than there is memory for their states; raises `ConfigError`.

    Args:
        num_bytes: that states, keys and values may take. per_state: of one row.
    """
    max_rows = config.scheduler.max_rows
    if not per_state or (max_rows + OTHER_SLOTS) * per_state < num_bytes:
        return
    fits = max(num_bytes // per_state - OTHER_SLOTS, 0)
    raise ConfigError(
        f"--max-num-seqs {max_rows}: the model keeps a state of {per_state / 2**20:.1f} MiB a row, "
        f"{max_rows * per_state / 2**30:.2f} GiB in all, and there are {num_bytes / 2**30:.2f} GiB "
        f"for states, keys and values: lower it to at most {fits}"
    )


def _cache_bytes(
    config: EngineConfig, assembly: Assembly, max_model_len: int, exchange: RankExchange
) -> int:
    per_state = bytes_per_slot(assembly.state_specs)
    if assembly.device.type == "cpu":
        num_bytes = config.cache.cpu_bytes
        check_cpu_cache(num_bytes)
        check_states(config, num_bytes, per_state)
        return num_bytes - (config.scheduler.max_rows + OTHER_SLOTS) * per_state
    total = torch.cuda.get_device_properties(assembly.device).total_memory
    left = int(total * config.cache.memory_utilization) - torch.cuda.memory_allocated()
    check_states(config, left, per_state)
    scheduler = config.scheduler
    limits = Limits(
        scheduler.max_rows,
        scheduler.step_tokens,
        max_model_len,
        config.cache.block_size,
        assembly.rows.drafts.shape[1],
        0 if assembly.buffers is None else len(assembly.buffers.slots),
        has_grammars=config.structured is not None,
        num_adapters=0 if config.adapters is None else config.adapters.max_loras,
    )
    memory = assembly.memory(limits.num_blocks)
    profile = measure(assembly.runner(memory, with_graphs=False), memory.pages, limits)
    logger.info("%s%s", f"rank {exchange.rank}: " if exchange.size > 1 else "", profile)
    return profile.cache_bytes(config.cache.memory_utilization)
