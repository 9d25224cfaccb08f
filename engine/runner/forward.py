"""The first half of a step: the model's layers over its tokens, eagerly or in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

import torch

from engine.arrays import Int32Array
from engine.contracts.attention import AttentionBackend, AttentionInputs
from engine.contracts.model import CausalLM, Hidden, ModelInputs
from engine.kernels.lora.groups import ActiveAdapters
from engine.memory.states import StepStates
from engine.runner.adapters import groups_of


def forward(
    model: CausalLM, inputs: ModelInputs, slots: torch.Tensor, feature_layers: Sequence[int]
) -> Hidden:
    """Run the target's layers over a step's tokens.

    Args:
        slots: int64 [T], of the tokens' keys.
        feature_layers: those whose outputs a drafter reads.
    """
    with nullcontext() if model.routes is None else model.routes.at(slots):
        return model.forward(inputs, feature_layers)


class ForwardGraphs(Protocol):
    """Forwards that were captured for some counts of tokens; `PiecewiseGraphs` is one."""

    def serves(self, num_tokens: int, states: StepStates | None) -> bool:
        """Whether a step of `num_tokens` tokens, whose rows have such states, can be replayed."""
        ...

    def replay(
        self, inputs: ModelInputs, slots: torch.Tensor, adapters: Int32Array | None = None
    ) -> Hidden:
        """Replay the forward of a step whose attention has begun; valid until the next replay.

        Args:
            slots: int64 [T], as in `AttentionInputs`.
            adapters: int32 [T], slots of the tokens' adapters; None where no token has one.
        """
        ...


class Forward:
    """Runs the forward of steps of any shape.

    Args:
        feature_layers: layers whose outputs a drafter reads.
        graphs: run the steps they serve; None runs every step eagerly.
        active: what the model's products read of adapters.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: AttentionBackend,
        feature_layers: Sequence[int] = (),
        graphs: ForwardGraphs | None = None,
        active: ActiveAdapters | None = None,
    ) -> None:
        self._model = model
        self._attention = attention
        self._feature_layers = feature_layers
        self._graphs = graphs
        self._active = active or ActiveAdapters()

    def __call__(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs: AttentionInputs,
        states: StepStates | None = None,
        adapters: Int32Array | None = None,
    ) -> Hidden:
        """The hidden states of token ids int32 [T] at positions int64 [T], valid in this step.

        Args:
            adapters: int32 [T], slots of the tokens' adapters; None where no token has one.
        """
        self._attention.begin(inputs)
        own = ModelInputs(input_ids, positions, self._attention, states)
        if self._graphs is not None and self._graphs.serves(len(input_ids), states):
            return self._graphs.replay(own, inputs.slots, adapters)
        with self._active.using(groups_of(adapters, input_ids.device)):
            return forward(self._model, own, inputs.slots, self._feature_layers)
