"""What is done with a sublayer's output before it is added to the stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from engine.models.formats.reader import WeightReader
from engine.models.layers.norms import Map, NormSpec


@dataclass(frozen=True)
class AddedOutput:
    """A norm of the output, or a factor.

    Attributes:
        norm: None is none.
    """

    norm: NormSpec | None = None
    scale: float = 1.0

    def load(self, reader: WeightReader, width: int, prefix: str) -> Map | None:
        """Read the norm; None where the output is added as it is."""
        if self.norm is not None:
            return self.norm.load(reader, width, prefix).__call__
        return None if self.scale == 1.0 else partial(torch.mul, self.scale)


AS_IT_IS = AddedOutput()
