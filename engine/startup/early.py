"""What a start begins before torch is imported, beside that import. Imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.config import EngineConfig
from engine.structured.tokenizer import TokenizerReader
from sampling.device.compile_workers import begin_workers, is_cache_empty
from sampling.device.kernel_packs import use_packs

READ_AHEAD = "read-ahead"
"""What threads that have weights read are called."""
READERS, PIECE = 4, 64 << 20
"""So many of them read so many bytes at a time: one reads at half of a disk's rate or less."""
SPIN_COUNT = 10_000
"""Rounds that a thread of OpenMP looks for work before it sleeps, some 30 us.

Its own default has no end: a step takes fifty times as long when another process wants the cores.
Without any, every operation begins by waking threads.
"""


def begin_early(config: EngineConfig) -> TokenizerReader | None:
    """Begin to read weights and tokenizer, and to make the GPU's context and, if need be, workers.

    It also sets how long OpenMP's threads look for work, and where Triton looks for kernels.
    Several ranks choose their GPUs later.

    Returns:
        What reads the tokenizer, where the configuration has one.
    """
    _bound_spinning()
    if config.model.load_format != "dummy":
        folder = (config.model.model,)
        threading.Thread(None, _read_ahead, READ_AHEAD, folder, daemon=True).start()
    reader = None if config.structured is None else TokenizerReader(config.structured)
    driver = None if config.model.device == "cpu" else _driver()
    if driver is None:
        return reader
    if config.tensor_parallel_size == 1:
        threading.Thread(target=_make_context, args=(driver,), daemon=True).start()
    use_packs()
    if is_cache_empty():
        begin_workers("sampling.sampler")  # torch, Triton and most kernels
    return reader


def _bound_spinning() -> None:
    """Tell OpenMP, which reads it as torch is imported, unless the user has."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def _read_ahead(folder: str) -> None:
    """Let the system read a folder's weights into its cache, so that loading finds them there.

    Bytes are sent nowhere, which copies none: advice to read a file (`posix_fadvise`) is taken for
    its first megabytes only. No more is read than half of the memory holds, or loading would find
    the first files gone. Of a hub id nothing is known yet, and what cannot be read is left to who
    loads it.
    """
    left = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    with open(os.devnull, "wb") as nowhere, ThreadPoolExecutor(READERS, READ_AHEAD) as readers:
        for path in sorted(Path(folder).expanduser().glob("*.safetensors")):
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                for begin in range(0, min(size, left), PIECE):
                    readers.submit(_send_piece, path, begin, nowhere.fileno())
                left -= size


def _send_piece(path: Path, begin: int, nowhere: int) -> None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        os.sendfile(nowhere, file.fileno(), begin, PIECE)


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
