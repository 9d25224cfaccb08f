"""The contract between the runner and a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.contracts.attention import AttentionSpec, LayerAttention


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

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: LayerAttention
    ) -> torch.Tensor:
        """The hidden states of a step's tokens, after the final norm.

        Args:
            input_ids: int32 [T]. positions: int64 [T], absolute.

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
