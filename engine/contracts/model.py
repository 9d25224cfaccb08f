"""The contract between the runner and a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.contracts.attention import AttentionSpec, LayerAttention
from engine.contracts.named_weights import NamedWeights
from engine.memory.routes import ExpertRoutes
from engine.memory.states import StateSpec, StepStates


class CausalLM(Protocol):
    """A decoder-only language model over paged attention.

    Attributes:
        vocab_size: width of the logits.
        hidden_size: width of the hidden states.
        max_position: positions the model was made for.
        attention_specs: one per layer that attends, in the order of `attend`'s `layer`.
        dtype, device: of weights and activations.
        num_weights: number of weights in the layers' products, which each token multiplies; of the
            rank that has the most.
        num_feature_layers: layers whose outputs `forward_with_features` gives, all or none.
        is_capturable: forwards of prompts can be captured as CUDA graphs: the layers look at no
            value on the host, and some attend.
        routes: keep which experts tokens took; None where that was not asked for.
    """

    vocab_size: int
    hidden_size: int
    max_position: int
    attention_specs: Sequence[AttentionSpec]
    dtype: torch.dtype
    device: torch.device
    num_weights: int
    num_feature_layers: int
    is_capturable: bool
    routes: ExpertRoutes | None

    def named_weights(self) -> NamedWeights:
        """Where every tensor of the checkpoint is held, by its name there."""
        ...

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

    def forward_with_features(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        feature_layers: Sequence[int],
        states: StepStates | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run `forward`, and also return outputs of layers, which an EAGLE head reads as features.

        Args:
            feature_layers: indices below `num_feature_layers`, in any order and number.

        Returns:
            Hidden states, and [T, len(feature_layers) * hidden_size], None without layers.
        """
        ...

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of token ids [T]: [T, hidden_size] in the model's dtype."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [N, vocab_size] of hidden states [N, hidden_size]."""
        ...
