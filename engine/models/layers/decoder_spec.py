"""The description of a decoder-only model, which a family makes of a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.contracts.attention import AttentionSpec
from engine.models.layers.layer import Layer
from engine.models.layers.norms import NormSpec
from engine.models.layers.per_layer import PerLayerEmbedding
from engine.models.layers.vocabulary import LmHead, TokenEmbedding
from engine.models.weights.shares import Division


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftingSpec:
    """A multi-token-prediction head: layers over the fused embedding and hidden state.

    Attributes:
        fuse: name of the product of both, side by side.
        layers: attention, and what follows it; none keeps a state.
    """

    embedding_norm: NormSpec
    hidden_norm: NormSpec
    fuse: str
    layers: Sequence[Layer]
    final_norm: NormSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderSpec:
    """A decoder: embeddings, layers in order, a norm, and the LM head.

    Attributes:
        final_norm: its name in the checkpoint is whole.
        max_position: positions that it was made for.
        initializer_range: standard deviation of random weights.
        num_drafting_layers: layers that the checkpoint has besides, which draft further tokens.
        per_layer: makes vectors of each token for each layer; None: the model has none.
        drafting: the head that drafts further tokens, if such checkpoints may have one.
        renamed: parts of tensors' names in checkpoints, and what we call them.
        unread: beginnings of the names of tensors that are no part of it.
    """

    vocab_size: int
    hidden_size: int
    max_position: int
    initializer_range: float
    embedding: TokenEmbedding
    layers: Sequence[Layer]
    final_norm: NormSpec
    lm_head: LmHead
    num_drafting_layers: int = 0
    drafting: DraftingSpec | None = None
    per_layer: PerLayerEmbedding | None = None
    renamed: Sequence[tuple[str, str]] = ()
    unread: tuple[str, ...] = ()

    @property
    def attention_specs(self) -> list[AttentionSpec]:
        """The attention of each layer that attends; sinks, which a checkpoint has, are zeros."""
        return [
            spec
            for layer in self.layers
            for sublayer in layer.sublayers
            for spec in sublayer.attention_specs
        ]

    @property
    def divisions(self) -> Iterator[Division]:
        """What ranks divide, besides the vocabulary."""
        for layer in self.layers:
            for sublayer in layer.sublayers:
                yield from sublayer.divisions
