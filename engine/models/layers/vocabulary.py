"""The two ends of a decoder: token ids to hidden states, and hidden states to logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from engine.kernels.linear import Linear, logits_linear
from engine.models.formats.adapted import AdaptedEmbedding, AdaptedLinear
from engine.models.formats.reader import WeightReader
from engine.models.weights.shares import undivided


@dataclass(frozen=True, kw_only=True)
class TokenEmbedding:
    """The embeddings of token ids.

    Attributes:
        scale: factor of the embeddings. rounds_scale: it is rounded to the model's dtype first.
    """

    name: str = "model.embed_tokens"
    scale: float = 1.0
    rounds_scale: bool = False

    def load(self, reader: WeightReader, vocab_size: int, hidden_size: int) -> LoadedEmbedding:
        """Read the weight [vocab, hidden], which every rank has all of."""
        weight = reader.matrix(f"{self.name}.weight", undivided(vocab_size), hidden_size)
        scale, adapted = self.scale, None
        if (adapters := reader.adapters) is not None:
            stacks = adapters.add_embedding(self.name, vocab_size, hidden_size)
            adapted = None if stacks is None else AdaptedEmbedding(stacks, adapters.active)
        if self.rounds_scale:
            scale = float(torch.tensor(scale).to(reader.dtype))
        return LoadedEmbedding(weight, scale, adapted)


class LoadedEmbedding:
    """Maps ids [T] to hidden states [T, hidden]."""

    def __init__(
        self, weight: torch.Tensor, scale: float, adapted: AdaptedEmbedding | None
    ) -> None:
        self.weight, self._scale, self._adapted = weight, scale, adapted

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        embedded = F.embedding(input_ids, self.weight)
        if self._adapted is not None:
            self._adapted.add_to(embedded, input_ids)
        return embedded if self._scale == 1.0 else embedded * self._scale


@dataclass(frozen=True, kw_only=True)
class LmHead:
    """The product that makes logits.

    Attributes:
        is_tied: it multiplies by the embeddings.
        scale: factor of logits. softcap: c in c * tanh(logit / c), after the factor.
    """

    is_tied: bool
    name: str = "lm_head"
    has_bias: bool = False
    scale: float = 1.0
    softcap: float | None = None

    def load(
        self, reader: WeightReader, vocab_size: int, hidden_size: int, embedding: LoadedEmbedding
    ) -> LoadedLmHead:
        """Read the rank's rows of the weight [vocab, hidden]; few are quantized: as they say."""
        own = reader.ranks.ids(vocab_size)
        if self.is_tied:
            weight = reader.shared(embedding.weight, own)
        else:
            weight = reader.laid_out(self.name, own, hidden_size)
        bias = None
        if self.has_bias:
            stored = reader.tensor(f"{self.name}.bias", own)
            bias = reader.derived(stored.float, stored)
        product = logits_linear(weight)
        if (adapters := reader.adapters) is not None:
            stacks = adapters.add_head(self.name, own, hidden_size, is_tied=self.is_tied)
            if stacks is not None:
                product = AdaptedLinear(product, stacks, adapters.active).__call__
        return LoadedLmHead(self, product, bias)


class LoadedLmHead:
    """Maps hidden states [N, hidden] to float32 logits [N, width] of the rank's ids."""

    def __init__(self, spec: LmHead, product: Linear, bias: torch.Tensor | None) -> None:
        self._product, self._bias = product, bias
        self._scale, self._softcap = spec.scale, spec.softcap

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._product(hidden)
        if self._bias is not None:
            logits = logits + self._bias
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = self._softcap * elementwise(torch.tanh, logits / self._softcap)
        return logits
