"""Prefill through FlashInfer's paged kernels (FA2, FA3 on Hopper), planned from host lengths.

How many tokens a prefilling row has computed and brings is the scheduler's own decision, so the
host knows it exactly and nothing has to be read back.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.base import AttentionInputs, AttentionSpec, KVCache
from engine.buffers import to_device
from engine.kernels.merge_states import merge_states

WORKSPACE_BYTES = 256 << 20
MIN_CAPABILITY = 8
"""Ampere."""
HEAD_DIMS = (64, 128, 256)
IN_FLIGHT = 4
"""A plan lies in pinned memory until its copy has run. When a step is launched, the one before it
may not have come so far, and a turn may launch two: one of choices, one of scoring."""


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


class Pages(NamedTuple):
    """Blocks of R rows, one row's after the other's.

    Attributes:
        starts: int32 [R + 1], host. blocks: int32 [starts[-1]], device.
        last_lens: int32 [R], host; tokens in each row's last block.
    """

    starts: npt.NDArray[np.int32]
    blocks: torch.Tensor
    last_lens: npt.NDArray[np.int32]


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
        backend = _backend(device)
        self._wrappers = {kind: _wrappers(workspace, backend) for kind in kinds}
        shareable = [kind for kind in kinds if kind.sliding_window is None]
        self._shared = {kind: _wrappers(workspace, backend) for kind in shareable}
        # What rows keep apart is short: FA3 would fill a quarter of its tiles of 128 queries.
        self._own = {kind: _wrappers(workspace, "fa2") for kind in shareable}
        self._num_shared = 0
        for kind in kinds:
            _load_kernels(kind, backend, dtype, device)
        for kind in shareable:
            _load_kernels(kind, "fa2", dtype, device)
            _compile_merging(kind, dtype, device)

    def begin(self, inputs: AttentionInputs) -> None:
        """Plan for the step's rows; their `seq_lens_np` must be exact."""
        self._step = (self._step + 1) % IN_FLIGHT
        self._num_shared = inputs.num_shared
        whole = self._pages(inputs.block_tables, inputs.seq_lens_np)
        own = whole
        if inputs.num_shared:
            own_lens = inputs.seq_lens_np - inputs.num_shared * self._cache.block_size
            own = self._pages(inputs.block_tables[:, inputs.num_shared :], own_lens)
        for kind in self._wrappers:
            shares = self._is_shared(kind)
            wrapper = (self._own if shares else self._wrappers)[kind][self._step]
            pages, query_starts = own if shares else whole, inputs.query_starts_np
            self._plan(wrapper, kind, pages, query_starts, inputs.max_query_len, causal=True)
        if inputs.num_shared:
            self._begin_shared(inputs)

    def _begin_shared(self, inputs: AttentionInputs) -> None:
        """All tokens as one row over the blocks that every row begins with."""
        num_tokens, block_size = len(inputs.slots), self._cache.block_size
        pages = Pages(
            np.array([0, inputs.num_shared], dtype=np.int32),
            inputs.block_tables[0, : inputs.num_shared],
            np.array([block_size], dtype=np.int32),
        )
        query_starts = np.array([0, num_tokens], dtype=np.int32)
        for kind, wrappers in self._shared.items():
            self._plan(wrappers[self._step], kind, pages, query_starts, num_tokens, causal=False)

    def _pages(self, block_tables: torch.Tensor, lengths: npt.NDArray[np.int32]) -> Pages:
        """The first blocks of tables int32 [R, B] that hold `lengths` [R] tokens."""
        block_size = self._cache.block_size
        num_blocks = -(-lengths // block_size)
        block_starts = np.concatenate([[0], np.cumsum(num_blocks)]).astype(np.int32)
        # Where each row's blocks are in the flattened tables, row after row.
        row_starts = np.arange(len(lengths)) * block_tables.shape[1] - block_starts[:-1]
        places = np.repeat(row_starts, num_blocks) + np.arange(block_starts[-1])
        blocks = block_tables.flatten()[to_device(places, block_tables.device)]
        return Pages(block_starts, blocks, lengths - (num_blocks - 1) * block_size)

    def _plan(
        self,
        wrapper: Any,
        kind: Kind,
        pages: Pages,
        query_starts: npt.NDArray[np.int32],
        longest: int,
        *,
        causal: bool,
    ) -> None:
        window = kind.sliding_window
        wrapper.plan(
            torch.from_numpy(query_starts),
            torch.from_numpy(pages.starts),
            pages.blocks,
            torch.from_numpy(pages.last_lens),
            kind.num_q_heads,
            kind.num_kv_heads,
            kind.head_dim,
            self._cache.block_size,
            causal=causal,
            sm_scale=kind.scale,
            window_left=-1 if window is None else window - 1,
            logits_soft_cap=kind.softcap,
            q_data_type=self._cache.layers[0].dtype,
            max_token_per_sequence=longest,
        )

    def _is_shared(self, kind: Kind) -> bool:
        """Whether the step's shared blocks are attended to apart from the rows' own."""
        return self._num_shared > 0 and kind in self._shared

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of q [T, num_q_heads, D] over stored keys, into `out` of the same shape."""
        kind, cache, step = self._kinds[layer], self._cache.layers[layer], self._step
        if not self._is_shared(kind):
            self._wrappers[kind][step].run(q, cache, out=out)
            return
        own, shared = torch.empty_like(out), torch.empty_like(out)
        _, own_log = self._own[kind][step].run(q, cache, out=own, return_lse=True)
        _, shared_log = self._shared[kind][step].run(q, cache, out=shared, return_lse=True)
        merge_states(own, own_log, shared, shared_log, out)


def _compile_merging(kind: Kind, dtype: torch.dtype, device: torch.device) -> None:
    """What the first request that shares a query would else compile."""
    states = torch.zeros((3, 1, kind.num_q_heads, kind.head_dim), dtype=dtype, device=device)
    logs = torch.zeros((2, 1, kind.num_q_heads), device=device)
    merge_states(states[0], logs[0], states[1], logs[1], states[2])


def _load_kernels(kind: Kind, backend: str, dtype: torch.dtype, device: torch.device) -> None:
    """What `plan` would else load, or build, in the first step."""
    from flashinfer.prefill import get_batch_prefill_module  # slow to import

    no_positions, no_fp16_sums = 0, False
    get_batch_prefill_module(
        backend,
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


def _wrappers(workspace: torch.Tensor, backend: str) -> list[Any]:
    """One for each step in flight."""
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

    make = BatchPrefillWithPagedKVCacheWrapper
    return [make(workspace, "NHD", backend=backend) for _ in range(IN_FLIGHT)]
