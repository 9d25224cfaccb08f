"""Several mixers side by side: all read one normed input, and all are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.contracts.attention import AttentionSpec
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import LoadedNorm, NormSpec
from engine.models.weights.shares import Division


@dataclass(frozen=True)
class SideBySide(SublayerSpec):
    """mixer(norm(x)) + mixer(norm(x)) + …; the norms of the mixers themselves are `OwnInput`."""

    hidden_size: int
    norm: NormSpec
    mixers: Sequence[SublayerSpec]

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        return [spec for mixer in self.mixers for spec in mixer.attention_specs]

    @property
    def divisions(self) -> Iterable[Division]:
        return [division for mixer in self.mixers for division in mixer.divisions]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        norm = self.norm.load(reader, self.hidden_size, f"{prefix}.")
        return LoadedSideBySide(norm, [each.load(reader, prefix, places) for each in self.mixers])


class LoadedSideBySide(NamedTuple):
    """The `Sublayer` of a `SideBySide`."""

    norm: LoadedNorm
    mixers: Sequence[Sublayer]

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        normed = self.norm.add(*stream)
        total, _ = self.mixers[0](normed, inputs)
        for mixer in self.mixers[1:]:
            total = total + mixer(normed, inputs)[0]
        return total, normed[1]
