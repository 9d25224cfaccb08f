"""Prefill through FlashInfer's paged kernels (FA2, FA3 on Hopper), planned from host lengths.

How many tokens a prefilling row has computed and brings is the scheduler's own decision, so the
host knows it exactly and nothing has to be read back.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.modules import Module, backend_of, loading
from engine.attention.widened import WidenedPages
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.shared_blocks import Sharing
from engine.kernels.item_attention import item_attention, item_tiles
from engine.memory.pages import KVCache
from sampling.device.mirror import to_device

WORKSPACE_BYTES = 256 << 20
MIN_CAPABILITY = 8
"""Lowest major compute capability, Ampere's."""
HEAD_DIMS = (64, 128, 256)
IN_FLIGHT = 4
"""Number of plans kept. A plan lies in pinned memory until its copy has run. When a step is
launched, the copies of the one before may not have run, and a turn may launch two steps: one of
choices and one of scoring."""


class Kind(NamedTuple):
    """The features that distinguish layers; layers of one kind share a plan."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    softcap: float | None

    @classmethod
    def of(cls, spec: AttentionSpec) -> Kind:
        return cls(*(getattr(spec, name) for name in cls._fields))

    @property
    def group(self) -> int:
        """Number of query heads for each key head."""
        return self.num_q_heads // self.num_kv_heads


class Pages(NamedTuple):
    """The blocks of R rows, row after row.

    Attributes:
        starts: int32 [R + 1], host. blocks: int32 [starts[-1]], device.
        last_lens: int32 [R], host; tokens in each row's last block.
    """

    starts: npt.NDArray[np.int32]
    blocks: torch.Tensor
    last_lens: npt.NDArray[np.int32]

    def of_rows(self, count: int) -> Pages:
        """Views of the first `count` rows."""
        starts = self.starts[: count + 1]
        return Pages(starts, self.blocks[: int(starts[-1])], self.last_lens[:count])


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
        and spec.is_causal
    )


def modules_of(
    specs: Iterable[AttentionSpec], dtype: torch.dtype, device: torch.device
) -> set[Module]:
    """The modules by which FlashInfer serves layers; none where it cannot run."""
    if not is_installed() or torch.cuda.get_device_capability(device)[0] < MIN_CAPABILITY:
        return set()
    return {Module.of(spec, dtype, device) for spec in specs if is_expressible(spec, dtype)}


class FlashInferPrefill:
    """Attends from rows that prefill, in the layers FlashInfer can express.

    Begins to load its modules when it is made; it attends once `is_loaded`. Of a cache in float8 it
    reads widened pages, and does not read blocks once that rows share.

    Attributes:
        layers: indices of those layers.
    """

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        dtype, device = cache.dtype, cache.layers[0].device
        self.layers = {i for i, spec in enumerate(specs) if is_expressible(spec, dtype)}
        self._specs, self._cache = list(specs), cache
        self._widened = None if cache.scales is None else WidenedPages(specs, cache)
        self._kinds = [Kind.of(spec) for spec in specs]
        self._step = 0
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        kinds = {self._kinds[i] for i in self.layers}
        backend = backend_of(device)
        self._wrappers = {kind: _wrappers(workspace, backend) for kind in kinds}
        self._shared = {kind: _wrappers(workspace, backend) for kind in _shareable(specs, cache)}
        self._num_alone = 0  # tokens of the rows that share nothing
        self._tables: torch.Tensor
        self._tiles: dict[int, torch.Tensor] = {}  # by query heads a key head
        self._modules = [loading(module).future for module in modules_of(specs, dtype, device)]

    @property
    def is_loaded(self) -> bool:
        """Whether it can attend.

        Raises:
            Exception: it never will; whatever FlashInfer or its build raised.
        """
        done = [module for module in self._modules if module.done()]
        for module in done:
            module.result()
        return len(done) == len(self._modules)

    def compile(self) -> None:
        """Launch the kernels around FlashInfer's once for each kind of layer."""
        if self._widened is not None:
            self._widened.begin(
                torch.zeros(1, dtype=torch.int32, device=self._cache.layers[0].device)
            )
            for kind in self._wrappers:
                self._widened.of_layer(self._kinds.index(kind))
        launch_items(self._specs, self._cache)

    def has_room(self, inputs: AttentionInputs) -> bool:
        """Whether it can attend in a step of these rows; their `seq_lens_np` must be exact."""
        if self._widened is None:
            return True
        num_blocks = -(-inputs.seq_lens_np // self._cache.block_size)
        return int(num_blocks.sum()) <= self._widened.capacity

    def begin(self, inputs: AttentionInputs) -> None:
        """Plan for the step's rows, which it has room for; their `seq_lens_np` must be exact."""
        self._step = (self._step + 1) % IN_FLIGHT
        num_rows, sharing = len(inputs.seq_lens_np), inputs.sharing
        num_alone = num_rows if sharing is None else int(sharing.starts[0])
        self._num_alone = int(inputs.query_starts_np[num_alone])
        counts = {kind: num_alone if kind in self._shared else num_rows for kind in self._wrappers}
        if most := max(counts.values()):
            pages = self._pages(inputs.block_tables, np.arange(most), inputs.seq_lens_np[:most])
            if self._widened is not None:
                pages = pages._replace(blocks=self._widened.begin(pages.blocks))
        for kind, count in counts.items():
            if count:
                query_starts = inputs.query_starts_np[: count + 1]
                wrapper, longest = self._wrappers[kind][self._step], inputs.max_query_len
                self._plan(wrapper, kind, pages.of_rows(count), query_starts, longest, causal=True)
        if sharing is not None and self._shared:
            self._begin_shared(inputs, sharing)

    def _begin_shared(self, inputs: AttentionInputs, sharing: Sharing) -> None:
        """Plan each group as one row over its shared blocks, then its rows over their own."""
        tables, block_size = inputs.block_tables, self._cache.block_size
        pages = self._pages(tables, sharing.starts[:-1], sharing.num_blocks * block_size)
        group_starts = inputs.query_starts_np[sharing.starts] - self._num_alone
        longest = int(np.diff(group_starts).max())
        for kind, wrappers in self._shared.items():
            self._plan(wrappers[self._step], kind, pages, group_starts, longest, causal=False)
        rows = np.arange(*sharing.starts[[0, -1]])
        num_shared = np.repeat(sharing.num_blocks, np.diff(sharing.starts))
        query_starts = inputs.query_starts_np[rows[0] :] - self._num_alone
        own_lens = inputs.seq_lens_np[rows] - num_shared * block_size
        own_tables = rows * tables.shape[1] + num_shared
        self._tables = tables
        for group in {kind.group for kind in self._shared}:
            tiles = item_tiles(query_starts, own_lens, own_tables, group)
            self._tiles[group] = to_device(tiles, tables.device)

    def _pages(
        self,
        block_tables: torch.Tensor,
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
    ) -> Pages:
        """The first blocks of `rows` [R] of the tables that hold `lengths` [R] tokens."""
        block_size = self._cache.block_size
        num_blocks = -(-lengths // block_size)
        block_starts = np.concatenate([[0], np.cumsum(num_blocks)]).astype(np.int32)
        # Where each row's blocks are in the flattened tables, row after row.
        row_starts = rows * block_tables.shape[1] - block_starts[:-1]
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
            q_data_type=self._cache.dtype,
            max_token_per_sequence=longest,
        )

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attend from q [T, num_q_heads, D] to stored keys, into `out` of the same shape."""
        kind, step = self._kinds[layer], self._step
        cache = self._widened.of_layer(layer) if self._widened else self._cache.layers[layer]
        alone = self._num_alone if kind in self._shared else len(q)
        if alone:
            self._wrappers[kind][step].run(q[:alone], cache, out=out[:alone])
        if alone == len(q):
            return
        q, out = q[alone:], out[alone:]
        _, log = self._shared[kind][step].run(q, cache, out=out, return_lse=True)
        tables, tiles = self._tables, self._tiles[kind.group]
        item_attention(out, log, q, cache, tables, tiles, kind.scale, kind.softcap)


def _shareable(specs: Sequence[AttentionSpec], cache: KVCache) -> dict[Kind, int]:
    """A layer of each kind that reads blocks once for all rows that share them.

    A query of a layer with a window may see only some of these; widened pages are one row's.
    """
    return {
        Kind.of(spec): layer
        for layer, spec in enumerate(specs)
        if is_expressible(spec, cache.dtype)
        and spec.sliding_window is None
        and cache.scales is None
    }


def launch_items(specs: Sequence[AttentionSpec], cache: KVCache) -> None:
    """Launch item attention on the null block, so that no request has to compile it."""
    for kind, layer in _shareable(specs, cache).items():
        pages, shape = cache.layers[layer], (1, kind.num_q_heads, kind.head_dim)
        q, out = torch.zeros((2, *shape), dtype=pages.dtype, device=pages.device)
        log = torch.zeros(shape[:2], device=pages.device)
        tables = torch.zeros((1, 1), dtype=torch.int32, device=pages.device)
        one = np.ones(1, dtype=np.int64)
        starts = np.array([0, 1], dtype=np.int32)
        tiles = to_device(item_tiles(starts, one, 0 * one, kind.group), pages.device)
        item_attention(out, log, q, pages, tables, tiles, kind.scale, kind.softcap)


def _wrappers(workspace: torch.Tensor, backend: str) -> list[Any]:
    """Make a wrapper for each step in flight."""
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

    make = BatchPrefillWithPagedKVCacheWrapper
    return [make(workspace, "NHD", backend=backend) for _ in range(IN_FLIGHT)]
