"""What layers that keep a state a row share: steps in parts, and convolutions read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.kernels.recurrent.convolution import (
    Convolution,
    Gates,
    causal_convolution,
    ring_length,
)
from engine.kernels.recurrent.matrices import (
    CHUNK,
    Drafted,
    HeadWeights,
    Matrices,
    Rule,
    TokenInputs,
    drafted_length,
)
from engine.kernels.recurrent.recurrence import recurrence
from engine.memory.states import StateSpec, StateTensor, StepStates
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs
from engine.models.weights.shares import RankShare


class RowMemory(NamedTuple):
    """What a layer keeps of a step's rows, one part of the step after the other.

    Attributes:
        ring: of the convolution.
        matrices: of the recurrence; None of a layer that only convolves.
    """

    states: StepStates
    ring: torch.Tensor
    matrices: Matrices | None

    @classmethod
    def of(cls, inputs: LayerInputs, place: int) -> RowMemory:
        """That of the layer whose states are at `place` of `StepStates.layers`."""
        states = inputs.states
        assert states is not None
        ring, *kept = states.layers[place]
        return cls(states, ring, Matrices(kept[0], Drafted(*kept[1:])) if kept else None)

    def convolve(
        self, x: torch.Tensor, kernel: Convolution, gates: Gates | None = None
    ) -> torch.Tensor:
        """Convolve x [T, C] of the step's tokens → [T, C]."""
        out = x.new_empty(x.shape)
        for part in self.states.parts:
            causal_convolution(x, kernel, self.ring, part.rows, part.extent, gates, out)
        return out

    def recur(self, tokens: TokenInputs, rule: Rule, weights: HeadWeights) -> torch.Tensor:
        """Compute the recurrence of the step's tokens → [T, H, V]."""
        assert self.matrices is not None
        out = tokens.v.new_empty(tokens.v.shape)
        for part in self.states.parts:
            recurrence(tokens, rule, weights, self.matrices, part.rows, part.extent, out)
        return out


def ring_tensor(width: int, channels: int, num_drafts: int, dtype: torch.dtype) -> StateTensor:
    """What a convolution keeps of a row."""
    return StateTensor((ring_length(width, num_drafts), channels), dtype)


def matrix_spec(
    ring: StateTensor,
    heads: int,
    key_heads: int,
    shape: tuple[int, int],
    num_drafts: int,
    *,
    by_channel: bool = False,
) -> StateSpec:
    """What a recurrence and the convolution before it keep of a row.

    Args:
        shape: V and K of a head's matrix.
        by_channel: each channel of K has its decay.
    """
    (value, key), length = shape, drafted_length(num_drafts)
    return StateSpec(
        (
            ring,
            StateTensor((heads, value, key), torch.float32),
            StateTensor((length, key_heads, key), ring.dtype),
            StateTensor((length, heads, value), ring.dtype),
            StateTensor((length, heads, key) if by_channel else (length, heads), torch.float32),
            StateTensor((length, heads), torch.float32),
        ),
        chunk=CHUNK,
    )


def read_convolution(
    reader: WeightReader,
    names: Sequence[str],
    shares: Sequence[RankShare],
    width: int,
    *,
    has_bias: bool = False,
    silu: bool = True,
) -> Convolution:
    """Read a convolution whose channels are a tensor's, or several tensors' one after another.

    Args:
        names: of the modules. shares: the rank's channels; of one each where there are several.
    """
    groups = [shares] if len(names) == 1 else [(share,) for share in shares]
    weights, biases = [], []
    for name, own in zip(names, groups, strict=True):
        weights.append(reader.channels(f"{name}.weight", own, 1, width))
        if has_bias:
            biases.append(reader.channels(f"{name}.bias", own))
    bias = reader.derived(lambda: torch.cat(biases), *biases) if has_bias else None
    return Convolution(
        reader.derived(lambda: torch.cat(weights)[:, 0].contiguous(), *weights), bias, silu
    )
