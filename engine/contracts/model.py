"""The contract between the runner and a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from engine.contracts.attention import AttentionSpec, LayerAttention
from engine.contracts.named_weights import NamedWeights
from engine.memory.routes import ExpertRoutes
from engine.memory.states import StateSpec, StepStates


class ModelInputs(NamedTuple):
    """What a model reads of a step.

    Attributes:
        input_ids: int32 [T]. positions: int64 [T], absolute.
        attention: over the step's keys and values; it has begun.
        states: of the step's rows; None where no layer keeps a state.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: LayerAttention
    states: StepStates | None = None


class Hidden(NamedTuple):
    """The output of a model's layers, in the model's dtype.

    Attributes:
        final: [T, hidden_size], after the final norm.
        features: [T, F], outputs of the layers a drafter reads; None where it reads none.
    """

    final: torch.Tensor
    features: torch.Tensor | None = None

    def copy_(self, other: Hidden) -> None:
        """Write another's numbers here."""
        self.final.copy_(other.final)
        if self.features is not None and other.features is not None:
            self.features.copy_(other.features)

    def of_tokens(self, count: int) -> Hidden:
        """Views of the first `count` tokens."""
        features = self.features
        return Hidden(self.final[:count], None if features is None else features[:count])


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
        num_feature_layers: layers whose outputs `forward` gives as features, all or none.
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

    def forward(self, inputs: ModelInputs, feature_layers: Sequence[int] = ()) -> Hidden:
        """Compute the hidden states of a step's tokens.

        Args:
            feature_layers: those whose outputs a drafter reads, side by side: indices below
                `num_feature_layers`, in any order and number.
        """
        ...

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of token ids [T]: [T, hidden_size] in the model's dtype."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [N, vocab_size] of hidden states [N, hidden_size]."""
        ...
