"""The sizes of the KV cache and of the context it holds."""

from __future__ import annotations

import logging
import os

import torch

from engine.config import ConfigError, EngineConfig
from engine.contracts.model import CausalLM
from engine.startup.assembly import Assembly
from engine.startup.memory import Limits, measure
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)


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


def size_cache(
    config: EngineConfig, assembly: Assembly, max_model_len: int, exchange: RankExchange
) -> tuple[int, int]:
    """The number of blocks, that of the rank with the least memory, and the context they can hold.

    Raises:
        ConfigError: they hold less than was asked for.
    """
    block_size = config.cache.block_size
    per_block = assembly.bytes_per_block
    num_bytes = _cache_bytes(config, assembly, max_model_len, exchange)
    num_blocks = config.cache.num_blocks or num_bytes // per_block
    num_blocks = int(exchange.all_gather(torch.tensor([num_blocks])).min())
    needed = -(-max_model_len // block_size) + 1
    if num_blocks >= needed:
        return num_blocks, max_model_len
    fits = max(num_blocks - 1, 0) * block_size
    if config.model.max_model_len is not None or fits < 1:
        raise ConfigError(
            f"the KV cache has {num_blocks} blocks of {block_size} tokens "
            f"({num_blocks * per_block / 2**20:.0f} MiB), a context of {max_model_len} tokens "
            f"needs {needed} ({needed * per_block / 2**20:.0f} MiB): lower --max-model-len to at "
            f"most {fits} or give the cache more memory"
        )
    logger.warning("context length lowered from %d to the %d the cache holds", max_model_len, fits)
    return num_blocks, fits


def _cache_bytes(
    config: EngineConfig, assembly: Assembly, max_model_len: int, exchange: RankExchange
) -> int:
    if assembly.device.type == "cpu":
        check_cpu_cache(config.cache.cpu_bytes)
        return config.cache.cpu_bytes
    scheduler = config.scheduler
    limits = Limits(
        scheduler.max_rows,
        scheduler.step_tokens,
        max_model_len,
        config.cache.block_size,
        assembly.rows.drafts.shape[1],
        0 if assembly.buffers is None else len(assembly.buffers.slots),
        has_grammars=config.structured is not None,
    )
    cache = assembly.cache(limits.num_blocks)
    profile = measure(assembly.runner(cache, with_graphs=False), cache, limits)
    logger.info("%s%s", f"rank {exchange.rank}: " if exchange.size > 1 else "", profile)
    return profile.cache_bytes(config.cache.memory_utilization)
