"""The memory of a rank that `--enable-sleep-mode` asks for."""

from __future__ import annotations

import torch

from engine.config import ConfigError, EngineConfig
from engine.memory.sleeping import FixedMemory, HostMemory, SleepingMemory


def make_sleeping(config: EngineConfig, device: torch.device) -> SleepingMemory:
    """Make memory that can be given back, or not; raises `ConfigError` where it cannot."""
    if not config.sleep_mode:
        return FixedMemory()
    if device.type != "cuda":
        return HostMemory()
    from engine.memory.mapped import MappedMemory

    try:
        return MappedMemory(device)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"--enable-sleep-mode: the driver maps no memory at addresses of ours ({error}); "
            "leave it out"
        ) from None
