# mypy: allow-untyped-defs, allow-incomplete-defs
"""FlashInfer's top-k and top-p sampler: where it can run, and the rows it draws.

It reads one seed for a whole batch, keeps ties beyond k and draws float32 noise, so it serves
only rows that have no seed of their own, and none where float64 noise is promised. Of its orders
of application only "top_k_first" is this package's distribution.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.device.mirror import to_device
from sampling.device.triton_support import jit, padded_lanes, tl
from sampling.kernels.logits import TILE, Source, load_raw, processed
from sampling.kernels.race import Picked
from sampling.kernels.row_params import NUM_FLOATS, TEMPERATURE, load_log_min_p, sampling_row
from sampling.kernels.tile_pass import LOG2_E, TileStats, scale_of
from sampling.paths.known_times import known_to_lose
from sampling.rows import FLASHINFER, TOP_K, TOP_P, SamplingRows

logger = logging.getLogger(__name__)

Use = Literal["auto", "always", "never"]

LOWEST_CAPABILITY = (8, 0)


class UnavailableError(ValueError):
    """FlashInfer's sampler is required but cannot run here; the message says why."""


def obstacle(device: torch.device) -> str | None:
    """The reason why FlashInfer's sampler cannot run on a device, None if it can."""
    if device.type != "cuda":
        return "FlashInfer's sampler needs a CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < LOWEST_CAPABILITY:
        return f"FlashInfer's sampler does not support compute capability {major}.{minor}"
    if importlib.util.find_spec("flashinfer") is None:
        return "the package flashinfer-python is not installed"
    return None


def choose(use: Use, *, use_fp64_gumbel: bool, device: torch.device) -> FlashInfer | None:
    """Load FlashInfer's sampler where it may be used, else None.

    Under "auto" it is not loaded where it is known to be slower; where that is not known, the
    warm-up's timing decides later whether it is used.

    Raises:
        UnavailableError: `use` is "always" and FlashInfer cannot run on the device.
    """
    reason = obstacle(device)
    if reason is None and use == "auto" and not use_fp64_gumbel and _is_slower(device):
        return None
    if reason is None and use != "never" and not use_fp64_gumbel:
        try:
            return FlashInfer(device)
        except (ImportError, OSError, RuntimeError) as error:  # no compiler, nothing built ahead
            reason = f"FlashInfer's sampler cannot be loaded: {str(error).strip().splitlines()[0]}"
    if use == "always" and reason is not None:
        raise UnavailableError(reason)
    if device.type != "cuda":
        return None
    if use == "never":
        _log_once(logging.INFO, "FlashInfer's sampler is switched off")
    elif not use_fp64_gumbel:
        _log_once(logging.WARNING, f"{reason}: the native sampler serves every row")
    elif use == "always":
        _log_once(logging.WARNING, "float64 noise is promised: FlashInfer's sampler serves no row")
    return None


def begin_loading(use: Use, use_fp64_gumbel: bool, device: torch.device) -> None:
    """Begin to load, or to build, what `choose` will load, on a thread; it tells what fails."""

    def load(make: Callable[[], Any]) -> None:
        with contextlib.suppress(Exception):
            make()

    if use == "never" or use_fp64_gumbel or obstacle(device) is not None:
        return
    if use == "auto" and _is_slower(device):
        return
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from flashinfer.sampling import get_sampling_module  # not on a thread: imports can clash

        threading.Thread(target=load, args=(get_sampling_module,), daemon=True).start()


def _is_slower(device: torch.device) -> bool:
    entry = known_to_lose(torch.cuda.get_device_capability(device))
    if entry is None:
        return False
    case = entry.times[0]
    words = f"{case.flashinfer_ms:g} ms for {case.num_rows} rows on {entry.gpu}, native "
    words = f"FlashInfer's sampler is known to be slower ({words}{case.native_ms:g})"
    _log_once(logging.INFO, f"{words}: the native sampler serves every row")
    return True


@functools.cache
def _log_once(level: int, message: str) -> None:
    logger.log(level, message)


class FlashInfer:
    """Draws the rows marked `FLASHINFER`, from its own random seed.

    Loads its kernels when it is made, and builds them then if they are not built; raises
    ImportError, OSError or RuntimeError where that is not possible.
    """

    def __init__(self, device: torch.device) -> None:
        from flashinfer import sampling

        sampling.get_sampling_module()
        self._sample: Any = sampling.top_k_top_p_sampling_from_logits
        self._generator = torch.Generator(device)
        self._generator.seed()

    def redraw(
        self,
        source: Source,
        stats: TileStats,
        batch: SamplingBatch,
        rows: SamplingRows,
        picked: Picked,
        *,
        edited: bool,
    ) -> None:
        """Draw the batch's eligible rows again and overwrite their tokens, in place.

        Args:
            source, stats: as `tile_pass` took and gave them.
            batch, rows: which rows are eligible is read on the host.
            picked: the native pick, whose `bad` holds for all rows.
            edited: as for `tile_pass`.
        """
        eligible = np.flatnonzero(rows.flags_np[batch.rows_np] & FLASHINFER)
        if not len(eligible):
            return
        index = to_device(eligible, source.logits.device)
        own = batch.rows[index]
        top_k, top_p = rows.ints[own, TOP_K], rows.floats[own, TOP_P]
        token_ids = self._sample(
            scaled_logits(source, stats, index, edited=edited),
            torch.where(top_k == 0, rows.vocab_size, top_k).int(),
            top_p.float(),
            filter_apply_order="top_k_first",
            generator=self._generator,
        )
        picked.token_ids[index] = token_ids.int().masked_fill(picked.bad[index] != 0, 0)


@jit
def _scaled_logits_kernel(
    source, stats, index_ptr, out_ptr, num_tiles, padded_tiles: tl.constexpr, edited: tl.constexpr
):
    tile, j = tl.program_id(0) % num_tiles, (tl.program_id(0) // num_tiles).to(tl.int64)
    i = tl.load(index_ptr + j)
    row = sampling_row(source, i)
    temperature = tl.load(source.floats + row * NUM_FLOATS + TEMPERATURE)
    tiles = tl.arange(0, padded_tiles)
    inside = tiles < num_tiles
    maxima = tl.load(stats.maxima + i * num_tiles + tiles, mask=inside, other=float("-inf"))
    masses = tl.load(stats.masses + i * num_tiles + tiles, mask=inside, other=0.0)
    top = tl.max(maxima, 0)
    bad = (tl.max((masses != masses).to(tl.int32), 0) != 0) | (top == float("-inf"))
    token_ids = tile * TILE + tl.arange(0, TILE)
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    floor = top + temperature * load_log_min_p(source, row)
    values = tl.where(values.to(tl.float64) >= floor, values, float("-inf"))
    scaled = (values - top) * (scale_of(temperature) / LOG2_E)
    scaled = tl.where(bad | (top == float("inf")), 0.0, scaled)  # a bad row's token is not used
    mask = token_ids < source.vocab_size
    tl.store(out_ptr + j * source.vocab_size + token_ids, scaled, mask=mask)


def scaled_logits(source: Source, stats: TileStats, index: Tensor, *, edited: bool) -> Tensor:
    """Scale the logits of some rows: (processed logit - row maximum) / T.

    -inf below min-p; 0 in bad rows.

    Args:
        source, stats: as `tile_pass` took and gave them.
        index: int64 [m], which logit rows.
        edited: as for `tile_pass`.

    Returns:
        float32 [m, vocab_size].
    """
    num_tiles = stats.maxima.shape[1]
    device = source.logits.device
    out = torch.empty(len(index), source.vocab_size, dtype=torch.float32, device=device)
    _scaled_logits_kernel[(num_tiles * len(index),)](
        source,
        stats,
        index,
        out,
        num_tiles,
        padded_tiles=padded_lanes(num_tiles),
        edited=edited,
        num_warps=2,
        enable_fp_fusion=False,
    )
    return out
