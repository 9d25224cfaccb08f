"""What LoRA adapters add to the experts' products, of tokens that have some."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from engine.kernels.experts.routing import Routing
from engine.kernels.experts.sums import weighted_sums
from engine.kernels.lora.delta import add_delta
from engine.kernels.lora.groups import ActiveAdapters
from engine.kernels.lora.pairs import PairGroups, group_adapted
from engine.kernels.lora.stacks import Stacks


class StacksBeside(Protocol):
    """The stacks of a product, which are there once all of the model was read."""

    @property
    def stacks(self) -> Stacks: ...


class ExpertAdapters(NamedTuple):
    """The adapters of a layer's experts.

    Attributes:
        gate_up, down: beside the products.
        active: of the forward under way.
    """

    gate_up: StacksBeside
    down: StacksBeside
    active: ActiveAdapters

    def of_step(self, ids: torch.Tensor, order: torch.Tensor | None) -> ExpertDeltas | None:
        """What they add; see `ExpertWeights.deltas`."""
        groups = self.active.groups
        if groups is None or groups.by_token is None or not len(groups.slots):
            return None
        gate_up, down = self.gate_up.stacks, self.down.stacks
        num_slots, num_experts = gate_up.a.shape[:2]
        pairs = group_adapted(ids, groups.by_token, order, num_experts, num_slots)
        return ExpertDeltas(gate_up, down, pairs, ids.numel())


class ExpertDeltas(NamedTuple):
    """What adapters add to the products of a step's P pairs.

    Attributes:
        pairs: that have some; their places are rows of what gate and up make.
    """

    gate_up: Stacks
    down: Stacks
    pairs: PairGroups
    num_pairs: int

    def of_gate_up(self, x: torch.Tensor) -> torch.Tensor:
        """What is added to gate and up products of tokens x [T, in]: [P, out] by place."""
        delta = x.new_zeros((self.num_pairs, self.gate_up.bounds[-1]))
        pairs = self.pairs
        add_delta(delta, x, self.gate_up, pairs.of(pairs.tokens), targets=pairs.places)
        return delta

    def add_down(self, products: torch.Tensor, inner: torch.Tensor) -> None:
        """Add to down products [P, out] by pair of inner [P, in] by place."""
        pairs = self.pairs
        add_delta(products, inner, self.down, pairs.of(pairs.places), targets=pairs.pairs)

    def with_down(
        self, inner: torch.Tensor, routing: Routing, base: torch.Tensor | None
    ) -> torch.Tensor:
        """What is added to the weighted sums of down products, plus `base`: [T, out]."""
        delta = inner.new_zeros((self.num_pairs, self.down.bounds[-1]))
        self.add_down(delta, inner)
        return weighted_sums(delta, routing, base)
