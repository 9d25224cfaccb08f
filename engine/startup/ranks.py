"""Starts the ranks of an engine, once it is known that they can do what is asked of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from engine.config import ConfigError, EngineConfig
from engine.models.refusals import check_ranks
from engine.models.weights.shares import RANKS_FLAG
from engine.parallel.collectives import GlooExchange
from engine.parallel.messages import RankTest
from engine.parallel.processes import RankProcesses
from engine.progress import phase
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)


class Ranks(NamedTuple):
    """The other ranks, as rank 0 has started them, and its exchange with them."""

    others: RankProcesses
    exchange: GlooExchange


def start_ranks(
    config: EngineConfig,
    device: torch.device,
    on_lost: Callable[[str], None],
    self_test: RankTest | None = None,
) -> Ranks:
    """Start ranks 1 and up, and meet them as rank 0.

    Args:
        on_lost, self_test: as in `RankProcesses`.

    Raises:
        ConfigError, ModelError: as `check_asked`; none was started.
    """
    gpus = check_asked(config, device, with_model=self_test is None or self_test.with_model)
    others = RankProcesses(config, on_lost, gpus=gpus, self_test=self_test)
    with phase("starting ranks"):
        exchange = meet(config, others.meeting, 0, device)
    others.have_met(lambda: exchange.num_begun + others.num_sent)
    return Ranks(others, exchange)


def check_asked(
    config: EngineConfig, device: torch.device, *, with_model: bool = True
) -> tuple[str, ...]:
    """Refuse what ranks cannot do; returns the GPU of each, none on a CPU.

    Args:
        with_model: they are to serve `config.model`.

    Raises:
        ConfigError, ModelError: what is asked for is not divided among ranks.
    """
    size = config.tensor_parallel_size
    check_config(config, device)
    if with_model:
        check_ranks(config.model, size)
    return visible_gpus(size) if device.type == "cuda" else ()


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
            f"{RANKS_FLAG} {size} needs {size} GPUs, and torch sees {count}; give at most {count}, "
            "or more GPUs in CUDA_VISIBLE_DEVICES"
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


def of_ranks(exchange: RankExchange) -> str:
    """How many ranks did something, after its name; nothing where it was one."""
    return f", {exchange.size} ranks" if exchange.size > 1 else ""


def check_config(config: EngineConfig, device: torch.device) -> None:
    """Refuse settings that several ranks cannot serve; raises `ConfigError`."""
    asked = f"{RANKS_FLAG} {config.tensor_parallel_size}"
    if config.sampling.flashinfer == "always":
        raise ConfigError(
            f"{asked}: FlashInfer's sampler draws from whole vocabularies, and "
            "TAILRACE_USE_FLASHINFER_SAMPLER=1 asks for it; leave one of them out"
        )
