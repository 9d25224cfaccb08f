"""Keys and values of decoding rows, kept side by side from one step to the next on a CPU.

Gathering them from their blocks takes as long as attending to them. A step that brings each row of
the step before it one token further copies these tokens alone.

Letters in shapes: n rows, c keys a row there is room for, H key heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.arrays import Int32Array, Int64Array
from engine.attention.dense import Visible
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.memory.blocks import NULL_BLOCK
from engine.memory.pages import KVCache

KEPT_BYTES = 64 << 20
"""Bytes that are kept at most; steps of more rows or longer ones gather anew."""

SPARE_BLOCKS = 4
"""Blocks of room after the longest row, so that rows are gathered again once in so many."""


class KeptKeys:
    """What the last step attended to, where that was a step of decoding rows alone.

    A block is written by nothing but a step, and every step begins here. So what is kept of a block
    is what it holds, as long as one step of the same blocks follows another.
    """

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        self._cells = [layer.flatten(0, 2) for layer in cache.layers]
        self._pages = [layer.flatten(2).flatten(0, 1) for layer in cache.layers]
        self._block_size, self._dtype = cache.block_size, cache.dtype
        self._bytes_per_block = cache.bytes_per_block(specs, cache.block_size, cache.dtype)
        self._layers: dict[int, torch.Tensor] = {}  # [2 * n * c, H, D] each
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what `layer` gives
        self._num_done = 0  # layers the step has been through
        self._tables: Int32Array = np.zeros((0, 0), dtype=np.int32)
        self._seq_lens: Int32Array = np.zeros(0, dtype=np.int32)
        self._room = 0  # c
        self._num_keys = 0  # that the step reads of each row, whole blocks
        self._source = self._target = torch.zeros(0, dtype=torch.int64)
        self._is_new = True
        self.visible: Visible

    @classmethod
    def of(cls, specs: Sequence[AttentionSpec], cache: KVCache) -> KeptKeys | None:
        """Make it for layers that read all keys as they are stored; None for others, or none."""
        whole = all(spec.sliding_window is None and spec.alibi_slopes is None for spec in specs)
        is_here = {layer.device.type for layer in cache.layers} == {"cpu"}
        return cls(specs, cache) if whole and is_here and cache.scales is None else None

    def begin(self, inputs: AttentionInputs) -> bool:
        """Begin a step; returns whether `layer` serves it. What was kept is forgotten if not."""
        seq_lens: Int32Array = inputs.seq_lens.numpy()
        num_blocks = -(-int(seq_lens.max(initial=0)) // self._block_size)
        if not self._serves(inputs, seq_lens, num_blocks):
            self.forget()
            return False
        tables: Int32Array = inputs.block_tables.numpy()
        if num_blocks * self._block_size != self._num_keys:
            self._num_keys = num_blocks * self._block_size
            self._views.clear()
        self._is_new = not self._continues(tables, seq_lens)
        if self._is_new:
            self.forget()
            self._source = self._all_pages(tables, seq_lens, num_blocks)
        else:
            self._source, self._target = self._last_tokens(inputs.slots.numpy(), seq_lens)
        self._tables, self._seq_lens = tables.copy(), seq_lens.copy()
        self._num_done = 0
        self.visible = self._visible(seq_lens)
        return True

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a layer, whose cells hold the step's: [n, H, keys, D] each."""
        self._num_done += 1
        if self._is_new:
            shape = (-1, *self._cells[index].shape[1:])
            self._layers[index] = self._pages[index].index_select(0, self._source).view(shape)
        else:
            newest = self._cells[index].index_select(0, self._source)
            self._layers[index].index_copy_(0, self._target, newest)
        if index not in self._views:
            layer = self._layers[index]
            rows = layer.view(2, len(self._seq_lens), self._room, *layer.shape[1:])
            k, v = rows[:, :, : self._num_keys].transpose(2, 3)
            self._views[index] = k, v
        return self._views[index]

    def forget(self) -> None:
        """Forget what is kept: the next step gathers anew."""
        self._layers.clear()
        self._views.clear()  # which hold the layers' memory too

    def _serves(self, inputs: AttentionInputs, seq_lens: Int32Array, num_blocks: int) -> bool:
        """Whether every row brings one token, and rows are few and alike in length."""
        num_rows = len(seq_lens)
        if inputs.max_query_len != 1 or len(inputs.slots) != num_rows:
            return False
        size = num_rows * (num_blocks + SPARE_BLOCKS) * self._bytes_per_block
        is_dense = num_rows * int(seq_lens.max()) <= 2 * int(seq_lens.sum())
        return size <= KEPT_BYTES and is_dense

    def _continues(self, tables: Int32Array, seq_lens: Int32Array) -> bool:
        """Whether each row is one token ahead of what is kept, in the same blocks."""
        # A step that failed has not been through all layers.
        if not self._layers or self._num_done != len(self._pages):
            return False
        if len(seq_lens) != len(self._seq_lens):
            return False
        if self._num_keys > self._room or (seq_lens != self._seq_lens + 1).any():
            return False
        width = min(tables.shape[1], self._tables.shape[1])
        before = self._tables[:, :width]
        return bool(((tables[:, :width] == before) | (before == NULL_BLOCK)).all())

    def _all_pages(self, tables: Int32Array, seq_lens: Int32Array, num_blocks: int) -> torch.Tensor:
        """Where the keys of all rows lie, then their values: int64 [2 * n * c / block_size]."""
        self._room = (num_blocks + SPARE_BLOCKS) * self._block_size
        pages = np.full((2, len(seq_lens), num_blocks + SPARE_BLOCKS), NULL_BLOCK, dtype=np.int64)
        # Blocks past a row's length may be granted already and never written.
        is_held = np.arange(num_blocks) * self._block_size < seq_lens[:, None]
        pages[:, :, :num_blocks] = np.where(is_held, tables[:, :num_blocks], NULL_BLOCK)
        pages *= 2
        pages[1] += 1
        return torch.from_numpy(pages.reshape(-1))

    def _last_tokens(
        self, slots: Int64Array, seq_lens: Int32Array
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The cells of the step's tokens, and where they are kept: int64 [2 * n] each."""
        keys = slots + slots // self._block_size * self._block_size
        places = np.arange(2 * len(slots)).reshape(2, -1) * self._room + (seq_lens - 1)
        source = np.concatenate([keys, keys + self._block_size])
        return torch.from_numpy(source), torch.from_numpy(places.reshape(-1))

    def _visible(self, seq_lens: Int32Array) -> Visible:
        hidden = np.arange(self._num_keys) >= seq_lens[:, None]
        bias = np.where(hidden, np.float32(-np.inf), np.float32(0.0))[:, None, None]
        return Visible(torch.from_numpy(bias).to(self._dtype), None)
