"""EAGLE heads in the formats they are published in.

EAGLE-1 (Li et al. 2024): one decoder layer without the norm in front of attention, over a product
of the token's embedding and the target's last hidden state. Its output stands for the next hidden
state; embedding and output matrix are the target's.

EAGLE-3 (Li et al. 2025): the features are outputs of layers of the target, fused by a product. The
layer's QKV product takes the normed embedding beside the normed feature; its output stands for the
next fused feature and, normed once more, goes through an output matrix of the head's own, often
over a part of the vocabulary.

Letters in shapes: N entries, T tokens of the target's step, H the head's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import AttentionBackend, AttentionSpec
from engine.contracts.drafter import VerifiedStep
from engine.contracts.model import CausalLM
from engine.kernels.linear import Linear, linear, logits_linear
from engine.kernels.norm import rms_norm
from engine.kernels.rope import Rotation
from engine.models.checkpoint.weights import WeightSource
from engine.models.fused.decoder_config import DecoderConfig, attention_specs
from engine.models.fused.decoder_weights import DecoderWeights


class EagleHead(Protocol):
    """One layer that drafts.

    Attributes:
        attention_specs: one.
        feature_layers: see `Drafter`.
        columns: int32 [vocab_size], the column of `logits` of each token of the target, -1 for
            tokens never drafted; None where columns are the target's ids.
    """

    attention_specs: Sequence[AttentionSpec]
    feature_layers: tuple[int, ...]
    columns: torch.Tensor | None

    def features(self, step: VerifiedStep) -> torch.Tensor:
        """What the target's step gives the head, [T, H]."""
        ...

    def forward(
        self,
        token_ids: torch.Tensor,
        features: torch.Tensor,
        rotation: Rotation,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """What stands for the features one position on, [N, H].

        Args:
            token_ids: int32 [N], those one position on.
            features: [N, H], may be overwritten.
            rotation: of the features' positions.
        """
        ...

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """float32 [N, width] of outputs of `forward`."""
        ...


class HeadParts:
    """What both generations are built from."""

    def __init__(
        self, config: DecoderConfig, source: WeightSource, target: CausalLM, device: torch.device
    ) -> None:
        self.config = config
        self.source = source
        self.target = target
        self.weights = DecoderWeights(config, source, target.dtype, device)

    def layer(self, prefix: str, fan_in: int) -> HeadLayer:
        """The layer whose tensors' names begin with `prefix`."""
        return HeadLayer(self, prefix, fan_in)


class HeadLayer:
    """A decoder layer whose input was normed, or not, before it."""

    def __init__(self, parts: HeadParts, prefix: str, fan_in: int) -> None:
        self._qkv = linear(*parts.weights.qkv(prefix, fan_in))
        self._body = parts.weights.body(prefix)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """[N, H] for attention's input x [N, fan_in]; `residual` [N, H] may be overwritten."""
        out, residual = self._body(0, self._qkv(x), residual, rotation, attention)
        return out + residual


class Eagle1Head:
    """Reads fc.* and layers.0.*."""

    feature_layers: tuple[int, ...] = ()
    columns: torch.Tensor | None = None

    def __init__(self, parts: HeadParts) -> None:
        hidden, read = parts.config.hidden_size, parts.weights.read
        self.attention_specs: Sequence[AttentionSpec] = attention_specs(parts.config)
        self._target = parts.target
        bias = read((hidden,), "fc.bias") if parts.source.shape("fc.bias") else None
        self._fuse = linear(read((hidden, 2 * hidden), "fc.weight"), bias)
        self._layer = parts.layer("layers.0", hidden)

    def features(self, step: VerifiedStep) -> torch.Tensor:
        return step.hidden

    def forward(
        self,
        token_ids: torch.Tensor,
        features: torch.Tensor,
        rotation: Rotation,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        x = self._fuse(torch.cat([self._target.embed(token_ids), features], dim=-1))
        return self._layer(x, x, rotation, attention)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._target.logits(features)


class Eagle3Head:
    """Reads fc, midlayer.* and norm; embed_tokens and lm_head where it has its own.

    Args:
        feature_layers: see `Drafter`.
        width: columns of the output matrix. columns: see `EagleHead`.
    """

    def __init__(
        self,
        parts: HeadParts,
        feature_layers: tuple[int, ...],
        width: int,
        columns: torch.Tensor | None,
    ) -> None:
        config, target, read = parts.config, parts.target, parts.weights.read
        hidden = config.hidden_size
        self.attention_specs: Sequence[AttentionSpec] = attention_specs(config)
        self.feature_layers = feature_layers
        self.columns = columns
        self._eps = config.norm_eps
        self._target = target
        self._embedding: torch.Tensor | None = None
        if parts.source.shape("embed_tokens.weight"):
            self._embedding = read((config.vocab_size, hidden), "embed_tokens.weight")
        fan_in = len(feature_layers) * target.hidden_size
        self._fuse = linear(read((hidden, fan_in), "fc.weight"))
        self._token_norm = read((hidden,), "midlayer.input_layernorm.weight")
        self._feature_norm = read((hidden,), "midlayer.hidden_norm.weight")
        self._layer = parts.layer("midlayer", 2 * hidden)
        self._final_norm = read((hidden,), "norm.weight")
        self._head: Linear = target.logits
        if width < config.vocab_size or parts.source.shape("lm_head.weight"):
            self._head = logits_linear(read((width, hidden), "lm_head.weight"))

    def features(self, step: VerifiedStep) -> torch.Tensor:
        assert step.features is not None
        return self._fuse(step.features)

    def forward(
        self,
        token_ids: torch.Tensor,
        features: torch.Tensor,
        rotation: Rotation,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        tokens = rms_norm(self._embed(token_ids), self._token_norm, self._eps)
        normed = rms_norm(features, self._feature_norm, self._eps)
        x = torch.cat([tokens, normed], dim=-1)
        return self._layer(x, features, rotation, attention)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._head(rms_norm(features, self._final_norm, self._eps))

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return self._target.embed(token_ids)
        return F.embedding(token_ids, self._embedding)
