"""What Gemma 4 adds at the end of a layer: a vector of the token for that layer, and a factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.linear import Linear
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.activation import Activation
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import LoadedRmsNorm, Map, NormSpec
from engine.models.weights.shares import undivided


@dataclass(frozen=True, kw_only=True)
class PerLayerEmbedding:
    """Vectors of each token for each layer: of its id, and a product of its embedding.

    Attributes:
        width: of a vector. vocab_size: of the ids that have some. eps: of the product's norm.
    """

    num_layers: int
    width: int
    vocab_size: int
    hidden_size: int
    eps: float

    def load(self, reader: WeightReader) -> LoadedPerLayer:
        """Read the embedding, which every rank has all of, the product, and its norm."""
        columns = self.num_layers * self.width
        table = reader.matrix(
            "model.embed_tokens_per_layer.weight", undivided(self.vocab_size), columns
        )
        name = "model.per_layer_model_projection"
        product = reader.laid_out(name, undivided(columns), self.hidden_size).linear()
        weight = reader.tensor("model.per_layer_projection_norm.weight", undivided(self.width))
        return LoadedPerLayer(
            table,
            float(torch.tensor(self.width**0.5).to(reader.dtype)),
            product,
            self.hidden_size**-0.5,
            LoadedRmsNorm(reader.derived(weight.float, weight), self.eps),
        )


class LoadedPerLayer(NamedTuple):
    """Maps ids [T] and embeddings [T, hidden] to vectors [T, layers, width].

    Attributes:
        table: [vocab, layers * width], times `table_scale`.
        product: of embeddings, [T, layers * width], whose results are times `product_scale`.
    """

    table: torch.Tensor
    table_scale: float
    product: Linear
    product_scale: float
    norm: LoadedRmsNorm

    def __call__(self, input_ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Add the two, and divide by the root of two."""
        shape = (len(input_ids), -1, len(self.norm.weight))
        of_ids = (F.embedding(input_ids, self.table) * self.table_scale).view(shape)
        of_text = self.product(embedded) * self.product_scale
        vectors: torch.Tensor = (self.norm(of_text.view(shape)) + of_ids) * 2.0**-0.5
        return vectors


@dataclass(frozen=True, kw_only=True)
class LayerEnd(SublayerSpec):
    """(x + norm(projection(activation(gate(x)) * vector))) * scalar.

    Attributes:
        index: of the layer. width: of its vector; 0 where there is none, and the factor is all.
        norm: of what is added.
    """

    hidden_size: int
    index: int
    width: int
    activation: Activation
    norm: NormSpec

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        scalar = reader.tensor(f"{prefix}.layer_scalar", undivided(1))
        if not self.width:
            return LoadedScale(scalar)
        narrow, wide = undivided(self.width), undivided(self.hidden_size)
        return LoadedLayerEnd(
            reader.linear([Projection(f"{prefix}.per_layer_input_gate", (narrow,))], wide),
            self.activation.__call__,
            reader.linear([Projection(f"{prefix}.per_layer_projection", (wide,))], narrow),
            self.norm.load(reader, self.hidden_size, f"{prefix}.").__call__,
            scalar,
            self.index,
        )


class LoadedScale(NamedTuple):
    """The `Sublayer` that multiplies the stream by a factor [1]."""

    scalar: torch.Tensor

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        """Multiply both parts."""
        x, residual = stream
        assert residual is not None
        return x * self.scalar, residual.mul_(self.scalar)


class LoadedLayerEnd(NamedTuple):
    """The `Sublayer` of a `LayerEnd` with a vector.

    Attributes:
        layer: the index of its vector.
    """

    gate: Linear
    activation: Map
    projection: Linear
    norm: Map
    scalar: torch.Tensor
    layer: int

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        x, residual = stream
        assert residual is not None
        assert inputs.per_layer is not None
        total = residual.add_(x)
        gated = self.activation(self.gate(total)) * inputs.per_layer[:, self.layer]
        added = self.norm(self.projection(gated))
        return added * self.scalar, total.mul_(self.scalar)
