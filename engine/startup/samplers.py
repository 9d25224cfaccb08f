"""Makes the sampler of the engine's configuration."""

from __future__ import annotations

from engine.config import ConfigError, SamplingConfig
from sampling.kernels.logprobs import MAX_TOP
from sampling.paths.flashinfer import UnavailableError
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig


def sampler_config(config: SamplingConfig) -> SamplerConfig:
    """The sampler's part of the engine's configuration."""
    return SamplerConfig(use_fp64_gumbel=config.use_fp64_gumbel, flashinfer=config.flashinfer)


def make_sampler(config: SamplingConfig, rows: SamplingRows) -> Sampler:
    """Make the sampler; raises `ConfigError` for what it cannot do on the rows' device."""
    on_cuda = rows.device.type == "cuda"
    if on_cuda and not 0 <= config.max_logprobs <= MAX_TOP:
        raise ConfigError(
            f"--max-logprobs must be from 0 to {MAX_TOP} on CUDA, got {config.max_logprobs}"
        )
    try:
        return Sampler(sampler_config(config), rows)
    except UnavailableError as error:
        raise ConfigError(f"TAILRACE_USE_FLASHINFER_SAMPLER=1: {error}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
