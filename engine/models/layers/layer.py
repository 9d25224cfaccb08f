"""The contract of layers: what a description says, and what loading makes of it.

A decoder's layer is a tuple of sublayers, each a mixer of tokens (attention), an MLP, or several
side by side. A sublayer is first a frozen description: sizes and the names of its tensors, without
any tensor. `load` reads these and returns a `Sublayer`, a function over the residual stream. Ranks,
weight formats and fused kernels are chosen while it loads, so that no description knows of them.

The stream is a pair (x, residual), whose sum it is: x is what the last sublayer has added. The next
adds the two in the kernel of its norm.

    class Mixer(SublayerSpec):                       # a new kind of layer
        def load(self, reader, prefix, places):
            return LoadedMixer(self.norm.load(...).before(reader.product(...)), ...)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

from engine.contracts.attention import AttentionSpec, LayerAttention
from engine.contracts.heads import Rotation
from engine.memory.states import StateSpec, StepStates
from engine.models.formats.reader import WeightReader
from engine.models.layers.rotation import RotationSpeeds
from engine.models.weights.shares import Division


class LayerInputs(NamedTuple):
    """What layers read of a step, besides hidden states.

    Attributes:
        rotations: of the step's tokens, by the places that `LayerPlaces` gave.
        states: of the step's rows; None where no layer keeps a state.
        per_layer: vectors of the step's tokens for each layer [T, layers, width], where the model
            has them.
        kept: keys and values of the step's tokens that layers keep for later ones, by name.
    """

    attention: LayerAttention
    rotations: Sequence[Rotation]
    states: StepStates | None = None
    per_layer: torch.Tensor | None = None
    kept: dict[str, torch.Tensor] | None = None


Stream = tuple[torch.Tensor, torch.Tensor | None]
"""(x, residual), the stream's parts [T, hidden]; None is zero."""


class Sublayer(Protocol):
    """A loaded sublayer.

    Ours are NamedTuples of functions: calling a module costs as much as a small kernel.
    """

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        """Map the stream to what the sublayer adds, and x + residual.

        `residual` may be overwritten, and is not None after the first sublayer.
        """
        ...


def sum_of(stream: Stream) -> torch.Tensor:
    """The sum of a stream's parts."""
    x, residual = stream
    return x if residual is None else x + residual


MakeState = Callable[[int], StateSpec]


class LayerPlaces:
    """What loaded layers keep between steps, and the rotations that they use, in order.

    Attributes:
        attention_specs: of the layers that attend, in the order of `attend`'s `layer`.
        rotations: the speeds of which there are.
        states: make what each layer that keeps a state keeps of a row, of the number of drafts
            that its steps bring.
        kept: the places of layers whose keys later ones read, by name.
    """

    def __init__(self) -> None:
        self.attention_specs: list[AttentionSpec] = []
        self.rotations: list[RotationSpeeds] = []
        self.states: list[MakeState] = []
        self.kept: dict[str, int] = {}

    def attention(self, spec: AttentionSpec) -> int:
        """The index of a layer that attends, which the backend knows it by."""
        self.attention_specs.append(spec)
        return len(self.attention_specs) - 1

    def state(self, make: MakeState) -> int:
        """The index in `StepStates.layers` of a layer that keeps a state of each row."""
        self.states.append(make)
        return len(self.states) - 1

    def rotation(self, speeds: RotationSpeeds) -> int:
        """The index in `LayerInputs.rotations` of a rotation; layers share one."""
        for index, other in enumerate(self.rotations):
            if other is speeds:
                return index
        self.rotations.append(speeds)
        return len(self.rotations) - 1


class SublayerSpec(ABC):
    """The description of a sublayer.

    With `--batch-invariant` the bits of a token's output must not depend on what else a step
    computes: products are `reader`'s, and functions go through `elementwise`. Tests of that mode
    take every family.

    Attributes:
        has_experts: tokens take some of its experts.
    """

    has_experts: ClassVar[bool] = False

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """What it keeps on one rank with all of it; sinks, which a checkpoint has, are zeros."""
        return ()

    @property
    def divisions(self) -> Iterable[Division]:
        """What ranks divide of it."""
        return ()

    @abstractmethod
    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        """Read its tensors, whose names begin with `prefix`.

        Raises:
            ModelError: a tensor is missing, or is not what it must be.
        """


@dataclass(frozen=True, eq=False)
class Layer:
    """A decoder layer: sublayers in the order in which they add to the stream.

    Attributes:
        name: what the names of its tensors begin with.
    """

    name: str
    sublayers: Sequence[SublayerSpec]

    def load(self, reader: WeightReader, places: LayerPlaces) -> list[Sublayer]:
        """Read the tensors of all sublayers."""
        return [sublayer.load(reader, self.name, places) for sublayer in self.sublayers]
