"""Prefill through FlashInfer's paged kernels (FA2, FA3 on Hopper), planned from host lengths.

How many tokens a prefilling row has computed and brings is the scheduler's own decision, so the
host knows it exactly and nothing has to be read back.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.attention.base import AttentionInputs, AttentionSpec, KVCache
from engine.buffers import to_device

WORKSPACE_BYTES = 256 << 20
MIN_CAPABILITY = 8
"""Ampere."""
HEAD_DIMS = (64, 128, 256)
IN_FLIGHT = 2
"""A plan lies in pinned memory until its copy has run; the step before may not have come so far."""


class Kind(NamedTuple):
    """Layers of one kind share a plan."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    softcap: float | None

    @classmethod
    def of(cls, spec: AttentionSpec) -> Kind:
        return cls(*(getattr(spec, name) for name in cls._fields))


def is_installed() -> bool:
    """Whether FlashInfer can be imported; does not import it."""
    return importlib.util.find_spec("flashinfer") is not None


def is_expressible(spec: AttentionSpec, dtype: torch.dtype) -> bool:
    """Whether FlashInfer's prefill computes this attention."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and spec.head_dim in HEAD_DIMS
        and spec.alibi_slopes is None
        and spec.sinks is None
    )


def _backend(device: torch.device) -> str:
    """The kernels FlashInfer is asked for on a device."""
    return "fa3" if torch.cuda.get_device_capability(device)[0] == 9 else "fa2"


class FlashInferPrefill:
    """Attends from rows with several query tokens, for the layers it can express.

    Loads its kernels when it is made, and builds them then if they are not built; raises
    RuntimeError where that is not possible.

    Attributes:
        layers: those layers.
    """

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        dtype, device = cache.layers[0].dtype, cache.layers[0].device
        self.layers = {i for i, spec in enumerate(specs) if is_expressible(spec, dtype)}
        self._cache = cache
        self._kinds = [Kind.of(spec) for spec in specs]
        self._step = 0
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        kinds = {self._kinds[i] for i in self.layers}
        for kind in kinds:
            _load_kernels(kind, dtype, device)
        self._wrappers = {kind: [_wrapper(workspace) for _ in range(IN_FLIGHT)] for kind in kinds}

    def begin(self, inputs: AttentionInputs) -> None:
        """Plan for the step's rows; their `seq_lens_np` must be exact."""
        self._step = (self._step + 1) % IN_FLIGHT
        block_size = self._cache.block_size
        lengths = inputs.seq_lens_np
        num_blocks = -(-lengths // block_size)
        block_starts = np.concatenate([[0], np.cumsum(num_blocks)]).astype(np.int32)
        # Where each row's blocks are in the flattened tables, row after row.
        row_starts = np.arange(len(lengths)) * inputs.block_tables.shape[1] - block_starts[:-1]
        places = np.repeat(row_starts, num_blocks) + np.arange(block_starts[-1])
        device = inputs.block_tables.device
        blocks = inputs.block_tables.flatten()[to_device(places, device)]
        for kind, wrappers in self._wrappers.items():
            window = kind.sliding_window
            wrappers[self._step].plan(
                torch.from_numpy(inputs.query_starts_np),
                torch.from_numpy(block_starts),
                blocks,
                torch.from_numpy(lengths - (num_blocks - 1) * block_size),
                kind.num_q_heads,
                kind.num_kv_heads,
                kind.head_dim,
                block_size,
                causal=True,
                sm_scale=kind.scale,
                window_left=-1 if window is None else window - 1,
                logits_soft_cap=kind.softcap,
                q_data_type=self._cache.layers[0].dtype,
                max_token_per_sequence=inputs.max_query_len,
            )

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of q [T, num_q_heads, D] over stored keys, into `out` of the same shape."""
        wrapper = self._wrappers[self._kinds[layer]][self._step]
        wrapper.run(q, self._cache.layers[layer], out=out)


def _load_kernels(kind: Kind, dtype: torch.dtype, device: torch.device) -> None:
    """What `plan` would else load, or build, in the first step."""
    from flashinfer.prefill import get_batch_prefill_module  # slow to import

    no_positions, no_fp16_sums = 0, False
    get_batch_prefill_module(
        _backend(device),
        dtype,
        dtype,
        dtype,
        torch.int32,
        kind.head_dim,
        kind.head_dim,
        no_positions,
        kind.sliding_window is not None,
        kind.softcap is not None,
        no_fp16_sums,
    )


def _wrapper(workspace: torch.Tensor) -> Any:
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

    backend = _backend(workspace.device)
    return BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
