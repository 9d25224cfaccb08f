"""Paged attention in plain torch, on the CPU and on CUDA.

The keys a group of rows sees are gathered into one dense tensor a layer; where they lie and what
each query sees is worked out once a step, in `begin`. Of decoding rows they are kept on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.dense import attend_dense
from engine.attention.groups import Group, GroupKeys, Sight, group_keys, split_rows
from engine.attention.kept_keys import KeptKeys
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.heads import Heads, Rotation
from engine.kernels.rope import rope_and_store
from engine.memory.pages import FP8_CACHE, Cells, KVCache


class PlainAttention:
    """The `AttentionBackend` in plain torch."""

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        self._specs = list(specs)
        self._block_size = cache.block_size
        self._cache = cache
        # Views of each layer: [num_blocks * 2 * block_size, H, D], and [num_blocks * 2, page].
        self._cells = [layer.flatten(0, 2) for layer in cache.layers]
        self._pages = [_movable(layer).flatten(2).flatten(0, 1) for layer in cache.layers]
        self._sights = {Sight.of(spec) for spec in specs}
        self._with_distance = any(spec.alibi_slopes is not None for spec in specs)
        self._groups: list[tuple[Group, dict[Sight, GroupKeys]]] = []
        self._one_group = False
        self._kept = KeptKeys.of(specs, cache)
        self._is_kept = False
        self._key_rows = self._rows = torch.empty(0, dtype=torch.int64)

    def begin(self, inputs: AttentionInputs) -> None:
        self._begin_cells(inputs.slots)
        self._is_kept = self._kept is not None and self._kept.begin(inputs)
        if self._is_kept:
            return
        self._groups = [(group, self._keys(group)) for group in split_rows(inputs)]
        self._one_group = (
            len(self._groups) == 1
            and isinstance(tokens := self._groups[0][0].tokens, slice)
            and tokens.stop - tokens.start == len(inputs.slots)
        )

    def begin_storing(self, slots: torch.Tensor) -> None:
        if self._kept is not None:
            self._kept.forget()  # it follows steps that attend alone
        self._begin_cells(slots)

    def store_product(self, layer: int, kv: torch.Tensor, heads: Heads, rotation: Rotation) -> None:
        rope_and_store(kv, heads, rotation, self.cells(layer))

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.cells(layer).store(k, v)
        return self.attend_stored(layer, q)

    def attend_product(
        self, layer: int, qkv: torch.Tensor, heads: Heads, rotation: Rotation
    ) -> torch.Tensor:
        return self.attend_stored(layer, rope_and_store(qkv, heads, rotation, self.cells(layer)))

    def cells(self, layer: int) -> Cells:
        """The places of the step's keys and values in a layer."""
        scales = self._cache.layer_scales(layer)
        return Cells(
            self._cells[layer], self._key_rows, self._block_size, scales=scales, rows=self._rows
        )

    def attend_stored(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attend as `attend` does, where the keys and values are in the layer's cells already."""
        spec = self._specs[layer]
        if self._kept is not None and self._is_kept:
            out = attend_dense(spec, q[:, :, None], *self._kept.layer(layer), self._kept.visible)
            return out[:, :, 0]
        if self._one_group:
            group, keys = self._groups[0]
            return self._attend_group(layer, group, keys[Sight.of(spec)], q)
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)  # padding tokens stay finite
        for group, keys in self._groups:
            own, tokens = keys[Sight.of(spec)], group.tokens
            out[tokens] = self._attend_group(layer, group, own, q[tokens])
        return out

    def _attend_group(
        self, layer: int, group: Group, keys: GroupKeys, q: torch.Tensor
    ) -> torch.Tensor:
        """Attend from the group's tokens q [n * q, heads, D] to the pages of its rows."""
        spec, rows = self._specs[layer], group.num_rows
        gathered = self._pages[layer].index_select(0, keys.pages)
        kv = gathered.view(2, rows, -1, spec.num_kv_heads, spec.head_dim).transpose(2, 3)
        scales = self._cache.layer_scales(layer)
        if scales is not None:
            kv = (kv.view(FP8_CACHE).float() * scales[:, None, :, None, None]).to(q.dtype)
        out = attend_dense(
            spec,
            q.reshape(rows, group.num_queries, spec.num_q_heads, spec.head_dim).transpose(1, 2),
            kv[0],
            kv[1],
            keys.visible,
        )  # [n, heads, q, D]
        return out.transpose(1, 2).reshape(-1, spec.num_q_heads, spec.head_dim)

    def _begin_cells(self, slots: torch.Tensor) -> None:
        """Find the cells of tokens with slots int64 [T]."""
        # slot = block * block_size + offset; a layer is [block, keys | values, offset, ...].
        blocks = slots.div(self._block_size, rounding_mode="floor")
        self._clear(slots, blocks)
        self._key_rows = slots + blocks * self._block_size
        self._rows = torch.cat([self._key_rows, self._key_rows + self._block_size])

    def _clear(self, slots: torch.Tensor, blocks: torch.Tensor) -> None:
        """Zero the blocks whose first token is one of the step's.

        A key past a row's length is read and weighed by zero, and zero times a NaN that an earlier
        owner of the block left would be NaN.
        """
        if slots.device.type == "cpu":
            firsts = blocks.numpy()[slots.numpy() % self._block_size == 0]
            if not len(firsts):
                return
            blocks = torch.from_numpy(firsts)
        else:  # how many there are is not known on the host: the others clear the null block
            blocks = blocks * (slots.remainder(self._block_size) == 0)
        for layer in self._cache.layers:
            _movable(layer).index_fill_(0, blocks, 0)

    def _keys(self, group: Group) -> dict[Sight, GroupKeys]:
        return {
            sight: group_keys(
                group, self._block_size, sight, self._cache.dtype, self._with_distance
            )
            for sight in self._sights
        }


def _movable(layer: torch.Tensor) -> torch.Tensor:
    """A layer as torch can gather and clear it: bytes, where it holds float8."""
    return layer.view(torch.uint8) if layer.dtype == FP8_CACHE else layer
