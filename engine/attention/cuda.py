"""Attention on CUDA: a kernel of our own for rows that decode, FlashInfer for those that prefill.

While FlashInfer's modules are being built, in layers that it cannot express, and in steps that are
too short to pay for its plan, a kernel of our own serves rows that prefill too. The change to
FlashInfer comes between two steps.

The decode kernel reads lengths on the device, so it can be captured in a graph and launched
before the step that makes those lengths is read back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from engine.attention.flashinfer import (
    MIN_CAPABILITY,
    FlashInferPrefill,
    is_expressible,
    is_installed,
)
from engine.attention.tiled import StepTiles, TiledPrefill, one_of_each
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.heads import Heads, Rotation
from engine.errors import first_line
from engine.kernels.decode.attention import paged_decode, paged_decode_product
from engine.kernels.decode.product import Product
from engine.kernels.decode.split_keys import DecodeScratch
from engine.kernels.invariant.attention import invariant_decode
from engine.kernels.invariant.shares import ShareScratch
from engine.kernels.rope import rope_and_store
from engine.memory.pages import Cells, KVCache
from sampling.device.compiling import compiling_together

logger = logging.getLogger(__name__)

UNPLANNED_FLOPS = 1 << 38
"""Operations of all layers' attention, masked ones included, up to which a step's prefill runs on
our own kernel. FlashInfer's plan takes the host 2.6 ms, in which a GPU waits that has nothing else
to do; our kernel, 0.6 times as fast, takes some 0.5 ms more for so many. It is one prompt of 1,000
tokens of a model of 0.6B, of 650 of 8B."""


class CudaAttention:
    """The `AttentionBackend` on CUDA; needs Triton.

    Args:
        max_decode_len: most query tokens of a decoding row, 1 + drafts to be verified.
        invariant_keys: most keys of a row, where a token's bits may not depend on the batch: all
            rows go through one kernel then, and none through FlashInfer. None where they may.

    Attributes:
        tiled: our own kernel for rows that prefill.
    """

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        cache: KVCache,
        max_rows: int,
        max_decode_len: int = 1,
        *,
        invariant_keys: int | None = None,
    ) -> None:
        self._specs = list(specs)
        self._cache = cache
        self._cells = [layer.flatten(0, 2) for layer in cache.layers]
        stored = cache.layers[0]
        self._shares: ShareScratch | None = None
        if invariant_keys is not None:
            self._shares = ShareScratch(
                self._specs, max_rows, invariant_keys, stored.device, max_decode_len
            )
        else:
            self._scratch = DecodeScratch(
                self._specs, max_rows, stored.device, max_decode_len, stored.itemsize
            )
        is_invariant = self._shares is not None
        self.tiled = TiledPrefill(self._specs, cache, invariant=is_invariant)
        self._flashinfer = None if is_invariant else _flashinfer_prefill(self._specs, cache)
        self._by_flashinfer: set[int] = set()  # layers, once it is loaded
        self._planned: set[int] = set()  # those of the step
        self._pair_flops = sum(4 * spec.num_q_heads * spec.head_dim for spec in self._specs)
        with compiling_together():
            if self._shares is None:
                launch_kernels(self._specs, cache)
            else:
                self._compile_invariant()
            if self._flashinfer is not None:
                self._flashinfer.compile()
        self._num_decode = 0  # tokens
        self._inputs: AttentionInputs
        self._key_rows: torch.Tensor | None = None  # of the step, once a layer asks for its cells

    def begin(self, inputs: AttentionInputs) -> None:
        self._inputs, self._key_rows = inputs, None
        num_rows = inputs.num_decode_rows
        self._num_decode = num_rows * inputs.decode_len
        if self._num_decode == len(inputs.slots):
            return
        if self._flashinfer is not None and not self._by_flashinfer:
            self._take_flashinfer(self._flashinfer)
        self._planned = set()
        if self._flashinfer is not None and self._pays_to_plan(inputs, num_rows):
            after = inputs.after(num_rows)
            if self._flashinfer.has_room(after):
                self._flashinfer.begin(after)
                self._planned = self._by_flashinfer
        if len(self._planned) < len(self._specs):
            self.tiled.begin(inputs, num_rows)

    @property
    def tiled_step(self) -> StepTiles | None:
        """The step's tiles, where all of its rows prefill on our own kernel in every layer."""
        return None if self._num_decode or self._planned else self.tiled.step

    def _pays_to_plan(self, inputs: AttentionInputs, first_row: int) -> bool:
        """Whether FlashInfer serves the rows from `first_row` on, by their shapes alone."""
        if not self._by_flashinfer:
            return False
        if inputs.sharing is not None:
            return True
        counts = np.diff(inputs.query_starts_np[first_row:]).astype(np.int64)
        return int(counts @ inputs.seq_lens_np[first_row:]) * self._pair_flops > UNPLANNED_FLOPS

    def _take_flashinfer(self, loading: FlashInferPrefill) -> None:
        """Let FlashInfer have its layers from this step on, if it is loaded."""
        try:
            if loading.is_loaded:
                self._by_flashinfer = loading.layers
                logger.info("prefill runs on FlashInfer")
        except Exception as error:  # no compiler, and no modules built ahead
            self._flashinfer = None
            words = "prefill runs on our own kernel: FlashInfer has no kernels: %s"
            logger.warning(words, first_line(error))

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.cells(layer).store(k, v)
        return self.attend_stored(layer, q)

    def attend_product(
        self, layer: int, qkv: torch.Tensor, heads: Heads, rotation: Rotation
    ) -> torch.Tensor:
        inputs, spec, scales = self._inputs, self._specs[layer], self._cache.layer_scales(layer)
        if self._shares is not None or inputs.decode_len > 1 or self._num_decode < len(qkv):
            q = rope_and_store(qkv, heads, rotation, self.cells(layer))
            return self.attend_stored(layer, q)
        out = qkv.new_empty((len(qkv), spec.num_q_heads, spec.head_dim))
        paged_decode_product(
            spec,
            Product(qkv, heads.norm, rotation.table, heads.eps, heads.num_between),
            rotation.positions,
            inputs.slots,
            self._cache.layers[layer],
            inputs.block_tables,
            inputs.seq_lens,
            out,
            self._scratch,
            scales,
        )
        return out

    def key_rows(self, slots: torch.Tensor) -> torch.Tensor:
        """The `Cells.key_rows` of tokens with slots int64 [T]."""
        block_size = self._cache.block_size
        # slot = block * block_size + offset; a layer is [block, keys | values, offset, ...].
        blocks = slots.div(block_size, rounding_mode="floor")
        return torch.add(slots, blocks, alpha=block_size)

    def cells(self, layer: int) -> Cells:
        """The cells of the step's tokens."""
        if self._key_rows is None:
            self._key_rows = self.key_rows(self._inputs.slots)
        return self.cells_at(layer, self._key_rows)

    def cells_at(self, layer: int, key_rows: torch.Tensor) -> Cells:
        """The cells of tokens whose keys go to `key_rows` instead of those of the step's tokens."""
        scales = self._cache.layer_scales(layer)
        return Cells(self._cells[layer], key_rows, self._cache.block_size, scales=scales)

    def begin_storing(self, slots: torch.Tensor) -> None:
        self._key_rows = self.key_rows(slots)

    def store_product(self, layer: int, kv: torch.Tensor, heads: Heads, rotation: Rotation) -> None:
        rope_and_store(kv, heads, rotation, self.cells(layer))

    def attend_stored(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attend as `attend` does, where the keys and values are in the layer's cells already."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.attend_into(layer, q, out)
        return out

    def attend_into(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attend as `attend_stored` does, into `out` of q's shape; both contiguous."""
        count, inputs = self._num_decode, self._inputs
        if count:
            self._decode(layer, q[:count], inputs, out[:count])
        if count < len(q):
            if self._flashinfer is not None and layer in self._planned:
                self._flashinfer.attend(layer, q[count:], out[count:])
            else:
                self.tiled.attend(layer, q, out, self.tiled.step)

    def _decode(
        self, layer: int, q: torch.Tensor, inputs: AttentionInputs, out: torch.Tensor
    ) -> None:
        """Attend from the decoding rows' tokens."""
        spec, pages = self._specs[layer], self._cache.layers[layer]
        scales = self._cache.layer_scales(layer)
        rows = (q, pages, inputs.block_tables, inputs.seq_lens, out)
        if self._shares is not None:
            invariant_decode(spec, *rows, self._shares, inputs.decode_len, scales)
        else:
            paged_decode(spec, *rows, self._scratch, inputs.decode_len, scales)

    def _compile_invariant(self) -> None:
        """Launch the kernels of `launch_kernels` that this backend has."""
        assert self._shares is not None
        self.tiled.compile()
        device, dtype = self._cache.layers[0].device, self._cache.dtype
        table = torch.zeros((2, 1), dtype=torch.int32, device=device)
        for layer in one_of_each(self._specs):
            spec = self._specs[layer]
            for num_rows in (1, 2):
                q = torch.zeros(
                    (num_rows, spec.num_q_heads, spec.head_dim), dtype=dtype, device=device
                )
                pages, scales = self._cache.layers[layer], self._cache.layer_scales(layer)
                invariant_decode(
                    spec,
                    q,
                    pages,
                    table,
                    table[:, 0] + 1,
                    torch.empty_like(q),
                    self._shares,
                    1,
                    scales,
                )


def launch_kernels(specs: Sequence[AttentionSpec], cache: KVCache) -> None:
    """Launch our own kernels of mixed steps once for each kind of layer, on the null block.

    Steps of nothing but decoding rows are warmed up when their graphs are captured.
    """
    TiledPrefill(specs, cache).compile()
    device, dtype = cache.layers[0].device, cache.dtype
    scratch = DecodeScratch(list(specs), 2, device)
    table = torch.zeros((2, 1), dtype=torch.int32, device=device)
    for layer in one_of_each(specs):
        spec, pages, scales = specs[layer], cache.layers[layer], cache.layer_scales(layer)
        for num_rows in (1, 2):  # a lone row has a kernel of its own
            q = torch.zeros((num_rows, spec.num_q_heads, spec.head_dim), dtype=dtype, device=device)
            out = torch.empty_like(q)
            paged_decode(spec, q, pages, table, table[:, 0] + 1, out, scratch, scales=scales)


def _flashinfer_prefill(specs: Sequence[AttentionSpec], cache: KVCache) -> FlashInferPrefill | None:
    dtype, device = cache.dtype, cache.layers[0].device
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < MIN_CAPABILITY:
        return None
    if not any(is_expressible(spec, dtype) for spec in specs):
        logger.info("prefill runs on our own kernel: FlashInfer computes no layer in %s", dtype)
        return None
    if not is_installed():
        logger.warning("prefill runs on our own kernel: FlashInfer is not installed")
        return None
    try:
        return FlashInferPrefill(specs, cache)
    except (ImportError, RuntimeError, OSError) as error:
        words = "prefill runs on our own kernel: FlashInfer cannot be used: %s"
        logger.warning(words, first_line(error))
        return None
