"""Runs a text through a model's layers as they are without their quantisation.

Each layer is read a second time, right behind the one that serves, run, and dropped: two models
never stand in memory. What is left are the hidden states that the served model's are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec, LayerAttention
from engine.contracts.heads import Rotation
from engine.memory.pages import KVCache
from engine.models.layers.general_layers import AddNorm, GeneralLayer
from engine.models.layers.layers import Layer

AnyLayer = Layer | GeneralLayer

BLOCK_SIZE = 16


class Reference:
    """The hidden states of a text by unquantised weights, which loading a model fills in.

    Args:
        token_ids: the text's ids int64 [T], for a vocabulary of a size.

    Attributes:
        hidden: [T, hidden_size] behind the final norm, in the model's dtype; None for a model whose
            weights are not quantised.
        scheme: how they are, in words; "" where they are not.
        weights: what `hidden` was computed with, in words.
    """

    def __init__(self, token_ids: Callable[[int], torch.Tensor]) -> None:
        self.token_ids = token_ids
        self.hidden: torch.Tensor | None = None
        self.scheme = ""
        self.weights = ""


class LayerwiseRun:
    """A text on its way through layers that come one at a time.

    Args:
        embedded: [T, hidden_size], of positions 0 to T - 1; is overwritten.
        rotations: of each layer, at those positions.
        specs: of each layer.
    """

    def __init__(
        self,
        embedded: torch.Tensor,
        rotations: Sequence[Rotation],
        specs: Sequence[AttentionSpec],
    ) -> None:
        self._x = embedded
        self._residual: torch.Tensor | None = None
        self._rotations = rotations
        self._attention = attention_of_text(specs, embedded.dtype, embedded.device, len(embedded))

    @torch.inference_mode()
    def run(self, index: int, layer: AnyLayer) -> None:
        """Run a layer, the next in order."""
        qkv, residual = layer.qkv(self._x, self._residual)
        rotation = self._rotations[index]
        self._x, self._residual = layer.body(index, qkv, residual, rotation, self._attention)

    @torch.inference_mode()
    def hidden(self, norm: AddNorm) -> torch.Tensor:
        """The hidden states [T, hidden_size] behind all layers and the final norm."""
        return norm.add(self._x, self._residual)[0]


def attention_of_text(
    specs: Sequence[AttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    num_tokens: int,
    scales: Sequence[torch.Tensor] | None = None,
) -> LayerAttention:
    """Attention for one forward of a text of `num_tokens`, over a cache of its own.

    Args:
        scales: as of `KVCache`.
    """
    num_blocks = -(-num_tokens // BLOCK_SIZE) + 1
    cache = KVCache(specs, num_blocks, BLOCK_SIZE, dtype, device, scales)
    blocks = torch.arange(1, num_blocks, dtype=torch.int32, device=device)
    attention = PlainAttention(specs, cache)
    attention.begin(AttentionInputs.of_row(blocks, BLOCK_SIZE, 0, num_tokens))
    return attention
