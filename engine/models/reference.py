"""Runs a text through a model's layers as they are without their quantization.

Each layer is read a second time, right after the one that serves, run, and dropped: two models are
never in memory. What is left are the hidden states that the served model's are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec, LayerAttention
from engine.contracts.heads import Rotation
from engine.memory.pages import KVCache
from engine.memory.states import text_states
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer
from engine.models.layers.norms import LoadedNorm

BLOCK_SIZE = 16


class Reference:
    """The hidden states of a text by unquantized weights, which loading a model fills in.

    Args:
        token_ids: the text's ids int64 [T], for a vocabulary of a size.

    Attributes:
        hidden: [T, hidden_size] after the final norm, in the model's dtype; None for a model whose
            weights are not quantized.
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
        per_layer: as of `LayerInputs`.
    """

    def __init__(self, embedded: torch.Tensor, per_layer: torch.Tensor | None = None) -> None:
        self._stream: Stream = (embedded, None)
        self._per_layer = per_layer
        self._kept: dict[str, torch.Tensor] = {}

    @torch.inference_mode()
    def run(
        self, layer: Sequence[Sublayer], places: LayerPlaces, rotations: Sequence[Rotation]
    ) -> None:
        """Run a layer, the next in order; places and rotations are the layer's alone."""
        x, _ = self._stream
        attention = attention_of_text(places.attention_specs, x.dtype, x.device, len(x))
        states = text_states([make(0) for make in places.states], x.device)
        inputs = LayerInputs(attention, rotations, states(0, len(x)), self._per_layer, self._kept)
        for sublayer in layer:
            self._stream = sublayer(self._stream, inputs)

    @torch.inference_mode()
    def hidden(self, norm: LoadedNorm) -> torch.Tensor:
        """The hidden states [T, hidden_size] after all layers and the final norm."""
        return norm.add(*self._stream)[0]


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
