"""From configuration to a running engine: device, model, cache, rows, sampler."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterator

import torch
from msgspec import structs

from engine.batch import RequestRows
from engine.config import ConfigError, EngineConfig, EngineInfo, ModelConfig, SamplingConfig
from engine.contracts.model import CausalLM
from engine.engine import Engine
from engine.models.loader import eos_token_ids, load_model
from engine.plan import Runner
from engine.planning.drafting import draft_rules
from engine.runner.speculation import Speculation
from engine.speculation.make_drafter import load_drafter
from engine.startup.assembly import Parts, make_attention, step_buffers
from engine.startup.memory import Limits, measure
from sampling.compiling import on_compilation
from sampling.kernels.logprobs import MAX_TOP
from sampling.paths.flashinfer import UnavailableError
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
    try:
        with _timed("loading the model"):
            model = load_model(config.model, device)
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"the model's weights do not fit on the GPU: {error}") from error
    return assemble(config, model, device)


@contextlib.contextmanager
def _timed(what: str) -> Iterator[None]:
    """Log how long a part of the start takes."""
    started = time.monotonic()
    yield
    logger.info("%s took %.1f s", what, time.monotonic() - started)


def sampler_config(config: SamplingConfig) -> SamplerConfig:
    """The sampler's part of the engine's configuration."""
    return SamplerConfig(use_fp64_gumbel=config.use_fp64_gumbel, flashinfer=config.flashinfer)


def make_sampler(config: SamplingConfig, rows: SamplingRows) -> Sampler:
    """The sampler, or `ConfigError` for what it cannot do on the rows' device."""
    on_cuda = rows.device.type == "cuda"
    if on_cuda and not 0 <= config.max_logprobs <= MAX_TOP:
        raise ConfigError(
            f"max-logprobs must be from 0 to {MAX_TOP} on CUDA, got {config.max_logprobs}"
        )
    try:
        return Sampler(sampler_config(config), rows)
    except UnavailableError as error:
        raise ConfigError(f"TAILRACE_USE_FLASHINFER_SAMPLER=1: {error}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def assemble(
    config: EngineConfig,
    model: CausalLM,
    device: torch.device,
    wrap: Callable[[Runner], Runner] = lambda runner: runner,
) -> Engine:
    """An engine around a model that is loaded; raises `ConfigError`.

    Args:
        wrap: given the runner, the runner the engine is to use.
    """
    if device.type == "cuda":
        config = structs.replace(config, scheduler=config.scheduler.on_gpu())
    max_model_len = _max_model_len(config, model)
    block_size, max_rows = config.cache.block_size, config.scheduler.max_rows
    drafting = draft_rules(config.speculation)
    rows = RequestRows(max_rows, max_model_len + 1, block_size, device, drafting.num_tokens)
    # One row more than choices may hold: the one that pads a graph's batch.
    sampling_rows = SamplingRows(max_rows + 1, model.vocab_size, device, history=rows.token_ids)
    sampler = make_sampler(config.sampling, sampling_rows)
    on_compilation(None)
    speculation = load_speculation(config, model, rows, sampling_rows)
    with _timed("warming up the sampler"):
        # Before memory is measured and graphs are captured.
        sampler.warm_up(max_rows, max_top=config.sampling.max_logprobs)
        if speculation is not None:
            speculation.warm_up(torch.float32, config.sampling.max_logprobs)
    buffers = None
    if config.cuda_graphs:
        buffers = step_buffers(model, config.scheduler.step_tokens, speculation)
    parts = Parts(model, rows, sampling_rows, sampler, speculation, device, buffers)
    with _timed("measuring memory"):
        num_blocks, max_model_len = _size_cache(config, parts, max_model_len)
    if not config.scheduler.chunked_prefill and config.scheduler.step_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill max-num-batched-tokens must be at least the context length "
            f"({max_model_len}), got {config.scheduler.step_tokens}"
        )
    with _timed("capturing steps"):
        runner = parts.runner(parts.cache(num_blocks), with_graphs=config.cuda_graphs)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what only the preparations needed
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
    on_compilation(lambda name: logger.warning("kernel %s was compiled inside a request", name))
    return Engine(config, info, wrap(runner), drafting)


def load_speculation(
    config: EngineConfig, target: CausalLM, rows: RequestRows, sampling_rows: SamplingRows
) -> Speculation | None:
    """The drafter that is asked for, and how its drafts are verified."""
    wanted = config.speculation
    if wanted is None:
        return None
    drafter = load_drafter(wanted, config.model, target, rows, sampling_rows, make_attention(rows))
    rates = wanted.acceptance_rates
    return Speculation(
        drafter,
        rows,
        sampling_rows,
        wanted.rejection_sample_method,
        None if rates is None else torch.tensor(rates, dtype=torch.float64, device=rows.device),
    )


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


def _size_cache(config: EngineConfig, parts: Parts, max_model_len: int) -> tuple[int, int]:
    """Number of blocks, and the context length they can hold."""
    block_size = config.cache.block_size
    per_block = parts.bytes_per_block
    num_bytes = _cache_bytes(config, parts, max_model_len)
    num_blocks = config.cache.num_blocks or num_bytes // per_block
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


def _cache_bytes(config: EngineConfig, parts: Parts, max_model_len: int) -> int:
    if parts.device.type == "cpu":
        return config.cache.cpu_bytes
    scheduler = config.scheduler
    limits = Limits(
        scheduler.max_rows,
        scheduler.step_tokens,
        max_model_len,
        config.cache.block_size,
        parts.rows.drafts.shape[1],
        0 if parts.buffers is None else len(parts.buffers.slots),
    )
    cache = parts.cache(limits.num_blocks)
    profile = measure(parts.runner(cache, with_graphs=False), cache, limits)
    logger.info("%s", profile)
    return profile.cache_bytes(config.cache.memory_utilization)
