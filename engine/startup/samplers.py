"""Makes the sampler of the engine's configuration."""

from __future__ import annotations

import torch

from engine.config import ConfigError, SamplingConfig
from sampling.kernels.logprobs import MAX_TOP
from sampling.paths.flashinfer import UnavailableError
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig


def sampler_config(config: SamplingConfig) -> SamplerConfig:
    """The sampler's part of the engine's configuration."""
    return SamplerConfig(use_fp64_gumbel=config.use_fp64_gumbel, flashinfer=config.flashinfer)


def most_drawn(config: SamplingConfig, device: torch.device, num_ranks: int = 1) -> int:
    """The most top tokens that a drawn token may have; -1 for no limit but the vocabulary.

    Kernels and ranks make lists of `MAX_TOP`; of prompts, whatever is asked for is sorted.
    """
    if device.type != "cuda" and num_ranks == 1:
        return config.max_logprobs
    return MAX_TOP if config.max_logprobs == -1 else min(config.max_logprobs, MAX_TOP)


def make_sampler(config: SamplingConfig, rows: SamplingRows) -> Sampler:
    """Make the sampler; raises `ConfigError` for what it cannot do on the rows' device."""
    try:
        return Sampler(sampler_config(config), rows)
    except UnavailableError as error:
        raise ConfigError(f"TAILRACE_USE_FLASHINFER_SAMPLER=1: {error}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
