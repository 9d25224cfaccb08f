"""Starts the ranks of an engine, once it is known that they can do what is asked of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from engine.config import ConfigError, EngineConfig
from engine.models.fused.shares import FLAG
from engine.models.loader import check_ranks
from engine.parallel.collectives import GlooExchange
from engine.parallel.processes import RankProcesses
from engine.progress import phase
from sampling.kernels.logprobs import MAX_TOP

logger = logging.getLogger(__name__)


def start_ranks(
    config: EngineConfig, device: torch.device, on_lost: Callable[[str], None]
) -> tuple[RankProcesses, GlooExchange]:
    """Start ranks 1 and up, and meet them as rank 0.

    Args:
        on_lost: as in `RankProcesses`.

    Raises:
        ConfigError, ModelError: what is asked for is not divided among ranks; none was started.
    """
    size = config.tensor_parallel_size
    check_config(config, device)
    check_ranks(config.model, size, device)
    gpus = visible_gpus(size) if device.type == "cuda" else ()
    others = RankProcesses(config, on_lost, gpus=gpus)
    with phase("starting ranks"):
        exchange = meet(config, others.meeting, 0, device)
    others.have_met(lambda: exchange.num_begun + others.num_told)
    return others, exchange


def meet(config: EngineConfig, meeting: Path, rank: int, device: torch.device) -> GlooExchange:
    """Meet the other ranks; on CUDA this rank's GPU is the first that the process sees."""
    size = config.tensor_parallel_size
    if device.type != "cuda":
        return GlooExchange(meeting, rank, size)
    from engine.parallel.device_exchange import DeviceExchange  # seconds to import

    exchange = DeviceExchange(meeting, rank, size, torch.device("cuda", 0))
    logger.info("%d GPUs exchange through %s", size, exchange.description)
    return exchange


def visible_gpus(size: int) -> tuple[str, ...]:
    """The GPUs of `size` ranks, as CUDA_VISIBLE_DEVICES names them.

    Raises:
        ConfigError: there are fewer.
    """
    count = torch.cuda.device_count()
    if count < size:
        raise ConfigError(
            f"{FLAG} {size} needs {size} GPUs, and torch sees {count}; give at most {count}, or "
            "more GPUs in CUDA_VISIBLE_DEVICES"
        )
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(index) for index in range(count)]
    return tuple(name.strip() for name in names[:size])


def set_threads(config: EngineConfig) -> None:
    """Let this rank compute with its share of the CPUs, or as many threads as were asked for."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif config.tensor_parallel_size > 1:
        num_cpus = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, num_cpus // config.tensor_parallel_size))


def check_config(config: EngineConfig, device: torch.device) -> None:
    """Refuse settings that several ranks cannot serve; raises `ConfigError`."""
    asked = f"{FLAG} {config.tensor_parallel_size}"
    if config.sampling.flashinfer == "always":
        raise ConfigError(
            f"{asked}: FlashInfer's sampler draws from whole vocabularies, and "
            "TAILRACE_USE_FLASHINFER_SAMPLER=1 asks for it; leave one of them out"
        )
    if not 0 <= config.sampling.max_logprobs <= MAX_TOP:
        raise ConfigError(
            f"{asked}: --max-logprobs must be from 0 to {MAX_TOP}, "
            f"got {config.sampling.max_logprobs}"
        )
