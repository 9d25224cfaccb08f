"""From configuration to a running engine: device, model, cache, rows, sampler."""

from __future__ import annotations

import gc
import logging

import torch

from engine.attention.base import KVCache
from engine.attention.plain import PlainAttention
from engine.batch import RequestRows
from engine.config import ConfigError, EngineConfig, EngineInfo, ModelConfig
from engine.engine import Engine
from engine.model_runner import ModelRunner
from engine.models.base import CausalLM
from engine.models.loader import eos_token_ids, load_model
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig

logger = logging.getLogger(__name__)


def resolve_device(config: ModelConfig) -> torch.device:
    """The device that "auto" means, or the one asked for if it is there."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no CUDA device")
    return torch.device(config.device)


def build_engine(config: EngineConfig) -> Engine:
    """Load the model, size the cache, make everything ready to step.

    Raises:
        ConfigError: a setting that does not fit, with the numbers.
        ModelError: a model folder that cannot be served.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = resolve_device(config.model)
    model = load_model(config.model, device)
    max_model_len = _max_model_len(config, model)
    block_size = config.cache.block_size
    num_blocks, max_model_len = _size_cache(config, model, max_model_len, device)
    if not config.scheduler.chunked_prefill and config.scheduler.max_step_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill max-num-batched-tokens must be at least the context length "
            f"({max_model_len}), got {config.scheduler.max_step_tokens}"
        )
    max_rows = config.scheduler.max_rows
    cache = KVCache(model.attention_specs, num_blocks, block_size, model.dtype, device)
    rows = RequestRows(max_rows, max_model_len + 1, block_size, device)
    sampling_rows = SamplingRows(max_rows, model.vocab_size, device, history=rows.token_ids)
    sampler = Sampler(
        SamplerConfig(
            use_fp64_gumbel=config.sampling.use_fp64_gumbel, flashinfer=config.sampling.flashinfer
        ),
        sampling_rows,
    )
    attention = PlainAttention(model.attention_specs, cache)
    runner = ModelRunner(model, attention, rows, sampling_rows, sampler)
    info = EngineInfo(
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids(config.model),
        max_rows=max_rows,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=str(model.dtype).removeprefix("torch."),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )
    gc.collect()
    gc.freeze()  # what was loaded lives as long as the process; keep collections short
    return Engine(config, info, runner)


def _max_model_len(config: EngineConfig, model: CausalLM) -> int:
    asked = config.model.max_model_len
    if asked is None:
        return model.max_position
    if asked < 1:
        raise ConfigError(f"max-model-len must be at least 1, got {asked}")
    if asked > model.max_position:
        raise ConfigError(
            f"max-model-len {asked} is over the {model.max_position} positions of the model"
        )
    return asked


def _size_cache(
    config: EngineConfig, model: CausalLM, max_model_len: int, device: torch.device
) -> tuple[int, int]:
    """Number of blocks, and the context length they can hold."""
    block_size = config.cache.block_size
    per_block = KVCache.bytes_per_block(model.attention_specs, block_size, model.dtype)
    num_blocks = config.cache.num_blocks
    if num_blocks is None:
        num_blocks = _cache_bytes(config, device) // per_block
    needed = -(-max_model_len // block_size) + 1
    if num_blocks >= needed:
        return num_blocks, max_model_len
    fits = max(num_blocks - 1, 0) * block_size
    if config.model.max_model_len is not None or fits < 1:
        raise ConfigError(
            f"the KV cache has {num_blocks} blocks of {block_size} tokens "
            f"({num_blocks * per_block / 2**20:.0f} MiB), a context of {max_model_len} tokens "
            f"needs {needed} ({needed * per_block / 2**20:.0f} MiB): lower max-model-len to at "
            f"most {fits} or give the cache more memory"
        )
    logger.warning("context length lowered from %d to the %d the cache holds", max_model_len, fits)
    return num_blocks, fits


def _cache_bytes(config: EngineConfig, device: torch.device) -> int:
    if device.type == "cpu":
        return config.cache.cpu_bytes
    free, total = torch.cuda.mem_get_info(device)
    return int(free - (1.0 - config.cache.memory_utilization) * total)
