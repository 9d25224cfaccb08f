"""Pages of a cache in float8, widened for kernels that read 16 bits only.

FlashInfer's FA3 takes no keys in float8 under queries in 16 bits. So a step's pages are copied in
front of each layer's attention, each number as every other kernel reads it: a stored number times
its scale, a power of two, which 16 bits hold exactly. The copy moves a few bytes a key where a
prefilling layer makes thousands of products.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.quantized.widen import widen_pages
from engine.memory.pages import KVCache

NUM_BYTES = 128 << 20
"""Memory for a layer's pages: 32,768 tokens of 8 heads of 128."""


class WidenedPages:
    """The pages that a step's rows read.

    Attributes:
        capacity: the most pages that there is room for, in any layer.
    """

    def __init__(self, specs: Sequence[AttentionSpec], cache: KVCache) -> None:
        assert cache.scales is not None
        self._cache = cache
        size = max(2 * cache.block_size * spec.num_kv_heads * spec.head_dim for spec in specs)
        self.capacity = max(1, NUM_BYTES // cache.dtype.itemsize // size)
        device = cache.layers[0].device
        self._numbers = torch.empty(self.capacity * size, dtype=cache.dtype, device=device)
        self._blocks = torch.empty(0, dtype=torch.int32, device=device)

    def begin(self, blocks: torch.Tensor) -> torch.Tensor:
        """Begin a step that reads `blocks` int32 [N], N <= capacity; returns where they will be."""
        assert len(blocks) <= self.capacity
        self._blocks = blocks
        return torch.arange(len(blocks), dtype=torch.int32, device=blocks.device)

    def of_layer(self, layer: int) -> torch.Tensor:
        """Widen the step's pages of a layer; valid until the next layer's are asked for."""
        pages, scales = self._cache.layers[layer], self._cache.layer_scales(layer)
        assert scales is not None
        shape = (len(self._blocks), *pages.shape[1:])
        out = self._numbers[: shape[0] * pages[0].numel()].view(shape)
        widen_pages(pages, self._blocks, scales, out)
        return out
