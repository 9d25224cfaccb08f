"""What a start begins before torch is imported, beside that import. Imports no torch."""

from __future__ import annotations

import ctypes
import threading

from engine.config import EngineConfig
from engine.structured.tokenizer import TokenizerReader
from sampling.compile_workers import begin_workers, is_cache_empty


def begin_early(config: EngineConfig) -> TokenizerReader | None:
    """Begin to read the tokenizer, to make the GPU's context and, where most are missing, workers.

    Several ranks choose their GPUs later.

    Returns:
        What reads the tokenizer, where the configuration has one.
    """
    reader = None if config.structured is None else TokenizerReader(config.structured)
    driver = None if config.model.device == "cpu" else _driver()
    if driver is None:
        return reader
    if config.tensor_parallel_size == 1:
        threading.Thread(target=_make_context, args=(driver,), daemon=True).start()
    if is_cache_empty():
        begin_workers("sampling.sampler")  # torch, Triton and most kernels
    return reader


def _driver() -> ctypes.CDLL | None:
    """The driver's library; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _make_context(driver: ctypes.CDLL) -> None:
    """Make the context of the first GPU, the one that torch will take: no Python, so no waiting.

    What goes wrong is left to torch to meet.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
