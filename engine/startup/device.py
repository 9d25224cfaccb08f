"""The device of an engine, and its context, which is begun while modules are still imported."""

from __future__ import annotations

import contextlib
import threading

import torch

from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.memory.sleeping import FixedMemory, HostMemory, SleepingMemory
from sampling.device.compiling import begin_reading_triton


def resolve_device(config: ModelConfig) -> torch.device:
    """The device of a configuration; "auto" is CUDA if torch sees a device, else the CPU."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda, but torch sees no CUDA device; use --device cpu or a torch with CUDA"
        )
    return torch.device(config.device)


def begin_context(config: EngineConfig) -> None:
    """Begin to make the GPU's context, load cuBLAS and read Triton: most of it is no Python.

    Several ranks have a GPU each, and choose it later.
    """
    if config.model.device != "cpu" and config.tensor_parallel_size == 1:
        threading.Thread(target=_make_context, daemon=True).start()


def _make_context() -> None:
    with contextlib.suppress(RuntimeError):  # whoever needs the GPU meets the error again
        if torch.cuda.is_available():
            begin_reading_triton()  # the first kernel that is launched would wait for it
            ones = torch.ones((16, 16), device="cuda")
            torch.mm(ones, ones)
            torch.cuda.synchronize()


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
