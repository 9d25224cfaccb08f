"""The contract between the models that make queries, keys and values, and whoever turns them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch


class Heads(NamedTuple):
    """The attention heads in a fused QKV product's output [T, width * D].

    Attributes:
        norm: RMSNorm weights of query and key heads [num_q + num_kv, D], if they are normalized;
            of the product's dtype or float32, as of `engine.kernels.norm.rms_norm`.
        num_between: heads' widths between queries and keys, which are something else.
    """

    num_q: int
    num_kv: int
    norm: torch.Tensor | None
    eps: float
    num_between: int = 0

    @property
    def width(self) -> int:
        """Heads' widths in a row of the product."""
        return self.num_q + self.num_between + 2 * self.num_kv


@dataclass(frozen=True)
class Rotation:
    """The rotation of a step's tokens.

    Attributes:
        table: float32 [num_positions, D], cos, then sin, of the angles at each position.
        positions: int64 [T].
    """

    table: torch.Tensor
    positions: torch.Tensor

    @cached_property
    def cos_and_sin(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and signed sin, float32 [T, 1, D] each: those of the two halves of a head."""
        cos, sin = self.table.index_select(0, self.positions)[:, None].chunk(2, dim=-1)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
