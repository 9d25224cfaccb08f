"""Which experts tokens took, kept by the slots of their keys.

What is found with the blocks of a shared prefix is found with its routes, and chunks, verified
drafts and replayed graphs write them where they write keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from engine.arrays import Float32Array, Int32Array, RouteIds

NoteRouting = Callable[[torch.Tensor, torch.Tensor], None]
"""Notes ids int32 and weights float32 [T, k] of the tokens of the forward that is under way."""

_BYTES_PER_EXPERT = 8
"""Of an id and its weight."""


class ExpertRoutes:
    """Ids and weights of the experts of each token whose keys are cached, by layer with experts.

    Attributes:
        layers: numbers of these layers in the model, in order.
        num_layers: of the model in all.
        num_experts: of the layer that has the most.
        top_k: experts that a token takes in a layer.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers: list[int] = []
        self.num_layers, self.num_experts, self.top_k = num_layers, 0, 0
        self._ids = self._weights = torch.empty(0)
        self._slots: torch.Tensor | None = None

    def of_layer(self, layer: int, num_experts: int, top_k: int) -> NoteRouting:
        """What a layer calls with its choices. All layers have one `top_k`."""
        assert self.top_k in (0, top_k)
        place, self.top_k = len(self.layers), top_k
        self.num_experts = max(self.num_experts, num_experts)
        self.layers.append(layer)

        def note(ids: torch.Tensor, weights: torch.Tensor) -> None:
            if self._slots is not None:
                self._ids[place].index_copy_(0, self._slots, ids)
                self._weights[place].index_copy_(0, self._slots, weights)

        return note

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that the tokens of a block take."""
        return block_size * len(self.layers) * self.top_k * _BYTES_PER_EXPERT

    def allocate(self, num_blocks: int, block_size: int, device: torch.device) -> None:
        """Replace what there is by room for `num_blocks` blocks, before any graph holds it."""
        shape = (len(self.layers), num_blocks * block_size, self.top_k)
        self._ids = torch.zeros(shape, dtype=torch.int32, device=device)
        self._weights = torch.zeros(shape, dtype=torch.float32, device=device)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All ids and all weights, [layers with experts, slots, k]."""
        return self._ids, self._weights

    @contextmanager
    def at(self, slots: torch.Tensor) -> Iterator[None]:
        """Run a forward whose tokens' keys go to `slots` int64 [T]."""
        self._slots = slots
        try:
            yield
        finally:
            self._slots = None

    def read(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """Ids and weights of tokens [layers with experts, T, k], by the slots of their keys."""
        return {"ids": self._ids[:, slots], "weights": self._weights[:, slots]}

    def laid_out(self, ids: Int32Array, weights: Float32Array) -> tuple[RouteIds, Float32Array]:
        """What `read` gave by token and layer of the model [T, L, k], zeros where none has experts.

        Ids are uint8, or int16 where there are more experts than that can tell.
        """
        shape = (ids.shape[1], self.num_layers, self.top_k)
        kind: type[np.uint8 | np.int16] = np.uint8 if self.num_experts <= 256 else np.int16
        of_layers, of_weights = np.zeros(shape, dtype=kind), np.zeros(shape, dtype=np.float32)
        of_layers[:, self.layers] = ids.swapaxes(0, 1)
        of_weights[:, self.layers] = weights.swapaxes(0, 1)
        return of_layers, of_weights
