"""The mixer of a short convolution between two gates, as of LFM2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.kernels.linear import Linear
from engine.kernels.recurrent.convolution import Convolution, Gates
from engine.memory.states import StateSpec
from engine.models.formats.part import Normed
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import NormSpec
from engine.models.layers.recurrent.row_states import RowMemory, read_convolution, ring_tensor
from engine.models.weights.shares import COLUMNS, Division, undivided


@dataclass(frozen=True, kw_only=True)
class ShortConvolution(SublayerSpec):
    """out_proj(C * conv(B * x)), of which in_proj makes B, C and x.

    Attributes:
        has_bias: of both products and the convolution.
    """

    hidden_size: int
    width: int
    norm: NormSpec
    name: str = "conv"
    has_bias: bool = False

    @property
    def divisions(self) -> Iterable[Division]:
        return [Division(COLUMNS, self.hidden_size, "the model's hidden_size")]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        name, channels = f"{prefix}.{self.name}", reader.ranks.columns(self.hidden_size)
        inputs = Projection(f"{name}.in_proj", (channels,) * 3, self.has_bias)
        product = reader.product([inputs], undivided(self.hidden_size))
        back = Projection(f"{name}.out_proj", (undivided(self.hidden_size),), self.has_bias)

        def state(num_drafts: int) -> StateSpec:
            ring = ring_tensor(self.width, channels.length, num_drafts, reader.dtype)
            return StateSpec((ring,))

        return LoadedShortConvolution(
            self.norm.load(reader, self.hidden_size, f"{prefix}.").before(product),
            places.state(state),
            read_convolution(
                reader,
                [f"{name}.conv"],
                [channels],
                self.width,
                has_bias=self.has_bias,
                silu=False,
            ),
            reader.linear([back], channels),
        )


class LoadedShortConvolution(NamedTuple):
    """The `Sublayer` of a short convolution.

    Attributes:
        place: of what it keeps, in `StepStates.layers`.
    """

    product: Normed
    place: int
    convolution: Convolution
    o: Linear

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        columns, residual = self.product(*stream)
        b, c, x = columns.chunk(3, dim=1)
        own = RowMemory.of(inputs, self.place).convolve(x, self.convolution, Gates(b, c))
        return self.o(own), residual
