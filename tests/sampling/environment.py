"""The sampler's configuration as a server would find it in the environment."""

from __future__ import annotations

import torch

from engine.startup.samplers import sampler_config
from sampling.sampler import SamplerConfig
from server.command.configure import engine_config
from server.command.settings import load_settings


def config_on(device: torch.device) -> SamplerConfig:
    """The default on a CPU; on CUDA the one of TAILRACE_USE_FLASHINFER_SAMPLER.

    `make test-gpu` sets it to 0, then to 1.
    """
    if device.type != "cuda":
        return SamplerConfig()
    return sampler_config(engine_config(load_settings({})).sampling)
