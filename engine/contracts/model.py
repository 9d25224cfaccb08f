"""The contract between the runner and a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.contracts.attention import AttentionSpec, LayerAttention
from engine.memory.states import StateSpec, StepStates


class CausalLM(Protocol):
    """A decoder-only language model over paged attention.

    Attributes:
        vocab_size: width of the logits.
        hidden_size: width of the hidden states.
        max_position: positions the model was made for.
        attention_specs: one per layer that attends, in the order of `attend`'s `layer`.
        dtype: of weights and activations.
    """

    vocab_size: int
    hidden_size: int
    max_position: int
    attention_specs: Sequence[AttentionSpec]
    dtype: torch.dtype

    def state_specs(self, num_drafts: int) -> Sequence[StateSpec]:
        """What layers keep of a row whose steps bring so many drafts; none for most models.

        One for each layer that keeps a state, in the order of `StepStates.layers`.
        """
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        states: StepStates | None = None,
    ) -> torch.Tensor:
        """The hidden states of a step's tokens, after the final norm.

        Args:
            input_ids: int32 [T]. positions: int64 [T], absolute.
            states: of the step's rows; None where no layer keeps a state.

        Returns:
            [T, hidden_size] in the model's dtype.
        """
        ...

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of token ids [T]: [T, hidden_size] in the model's dtype."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [N, vocab_size] of hidden states [N, hidden_size]."""
        ...
