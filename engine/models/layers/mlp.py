"""The MLP of a layer: one product, an activation, and a product back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.kernels.linear import Linear
from engine.models.formats.part import Normed, WeightProduct
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.activation import GATED_SILU, Activation, Xielu
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import NO_NORM, Map, NormSpec
from engine.models.layers.residual import AS_IT_IS, AddedOutput
from engine.models.weights.shares import COLUMNS, Division, RankShare, RankShares, undivided


@dataclass(frozen=True, kw_only=True)
class Mlp(SublayerSpec):
    """down(activation(gate_up(norm(x)))).

    Attributes:
        hidden_size, inner: sizes of the stream and between the products.
        name: of the module that holds the products.
        gate_up: names of gate and up product, or of the only one, or of both packed in one.
        has_bias: of all products.
    """

    hidden_size: int
    inner: int
    norm: NormSpec = NO_NORM
    name: str = "mlp"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    activation: Activation | Xielu = GATED_SILU
    has_bias: bool = False
    output: AddedOutput = AS_IT_IS

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(COLUMNS, self.inner, "the model's intermediate_size")]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        output = self.output.load(reader, self.hidden_size, f"{prefix}.")
        return LoadedMlp(*self.read(reader, prefix), output)

    def read(self, reader: WeightReader, prefix: str) -> tuple[Normed, Linear]:
        """Read what maps the stream to what the last product multiplies, and that product."""
        norm = self.norm.load(reader, self.hidden_size, f"{prefix}.")
        gate_up = reader.product(self.inputs(prefix, reader.ranks), undivided(self.hidden_size))
        down = self.read_down(reader, prefix)
        activation = self.activation.load(reader, f"{prefix}.{self.name}.")
        inner = norm.before_activated(gate_up, activation, down)
        return inner, reader.sum_of(down.linear, self._columns(reader.ranks))

    def inputs(self, prefix: str, ranks: RankShares) -> Sequence[Projection]:
        """The projections of the stream."""
        is_packed = self.activation.gated and len(self.gate_up) == 1
        columns = (self._columns(ranks),) * (2 if is_packed else 1)
        return [
            Projection(f"{prefix}.{self.name}.{name}", columns, self.has_bias)
            for name in self.gate_up
        ]

    def read_down(self, reader: WeightReader, prefix: str) -> WeightProduct:
        """Read the product back to the stream, a rank's part of a sum."""
        name = f"{prefix}.{self.name}.{self.down}"
        back = Projection(name, (undivided(self.hidden_size),), self.has_bias)
        return reader.product([back], self._columns(reader.ranks))

    def _columns(self, ranks: RankShares) -> RankShare:
        return ranks.columns(self.inner)


class LoadedMlp(NamedTuple):
    """The `Sublayer` of an `Mlp`.

    Attributes:
        inner: maps (x, residual) to what `down` multiplies, and the sum.
    """

    inner: Normed
    down: Linear
    output: Map | None

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        inner, residual = self.inner(*stream)
        x = self.down(inner)
        return (x if self.output is None else self.output(x)), residual
