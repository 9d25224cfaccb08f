"""EAGLE heads in the formats they are published in.

EAGLE-1 (Li et al. 2024): one decoder layer without the norm in front of attention, over a product
of the token's embedding and the target's last hidden state. Its output approximates the next
hidden state; embedding and LM head are the target's.

EAGLE-3 (Li et al. 2025): the features are outputs of layers of the target, fused by a product. The
layer's QKV product takes the normed embedding beside the normed feature. Its output approximates
the next fused feature and, normed once more, goes through an LM head of its own, often over a part
of the vocabulary.

Every rank has all of an EAGLE head but the LM head over the target's ids, which is divided as the
target's own is. One over a reduced vocabulary is on every rank too: docs/speculation.md says why.

Letters in shapes: N entries, T tokens of the target's step, H the EAGLE head's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import AttentionBackend, AttentionSpec
from engine.contracts.drafter import VerifiedStep
from engine.contracts.heads import Rotation
from engine.contracts.model import CausalLM
from engine.kernels.linear import Linear, linear, logits_linear
from engine.kernels.norm import rms_norm
from engine.models.families.decoder_config import DecoderConfig, attention_specs
from engine.models.families.decoder_weights import DecoderWeights
from engine.models.weights.sources import Checkpoint, WeightSource
from sampling.vocab_shard import VocabShard


class EagleHead(Protocol):
    """The decoder layer that drafts, with what it reads and an LM head.

    Attributes:
        attention_specs: of its one layer.
        feature_layers: see `Drafter`.
        columns: int32 [vocab_size], the column of `logits` of each token of the target, -1 for
            tokens never drafted; None where columns are ids of the `shard`.
        shard: the ids of `logits`; all of them, on every rank, with `columns`.
    """

    attention_specs: Sequence[AttentionSpec]
    feature_layers: tuple[int, ...]
    columns: torch.Tensor | None
    shard: VocabShard

    def features(self, step: VerifiedStep) -> torch.Tensor:
        """The EAGLE head's features [T, H] of the target's step."""
        ...

    def forward(
        self,
        token_ids: torch.Tensor,
        features: torch.Tensor,
        rotation: Rotation,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """Predict the features at the next positions, [N, H].

        Args:
            token_ids: int32 [N], the tokens at the next positions.
            features: [N, H], at the current positions; may be overwritten.
            rotation: of the current positions.
        """
        ...

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """The float32 logits [N, width] of outputs of `forward`."""
        ...


class EagleHeadSource:
    """The config, weights and target from which an EAGLE head is built.

    Args:
        shard: the ids of the target's logits.
    """

    def __init__(
        self,
        config: DecoderConfig,
        tensors: WeightSource,
        target: CausalLM,
        device: torch.device,
        shard: VocabShard,
    ) -> None:
        self._device = device
        self.shard = shard
        self.config = config
        self.tensors = tensors
        self.target = target
        self.weights = DecoderWeights(config, tensors, target.dtype, device)

    def own_lm_head(self) -> Linear:
        """Read the rows of the EAGLE head's own LM head that make the logits of the shard."""
        shape = (self.shard.vocab_size, self.config.hidden_size)
        own = slice(self.shard.first, self.shard.first + self.shard.width)
        if not isinstance(self.tensors, Checkpoint):
            whole = self.weights.read(shape, "lm_head.weight")
            return logits_linear(whole[own].clone())
        weight = torch.empty(
            (self.shard.width, shape[1]), dtype=self.target.dtype, device=self._device
        )
        self.tensors.fill_part(weight, "lm_head.weight", shape, (own, slice(None)))
        return logits_linear(weight)

    def layer(self, prefix: str, fan_in: int) -> EagleLayer:
        """Read the layer whose tensors' names begin with `prefix`."""
        return EagleLayer(self, prefix, fan_in)


class EagleLayer:
    """A decoder layer without a norm in front of its attention."""

    def __init__(self, source: EagleHeadSource, prefix: str, fan_in: int) -> None:
        self._qkv = linear(*source.weights.qkv(prefix, fan_in))
        self._body = source.weights.body(prefix)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """Compute [N, H] from attention's input x [N, fan_in]; `residual` [N, H] is overwritten."""
        out, residual = self._body(0, self._qkv(x), residual, rotation, attention)
        return out + residual


class Eagle1Head:
    """An EAGLE-1 head: reads fc.* and layers.0.*."""

    feature_layers: tuple[int, ...] = ()
    columns: torch.Tensor | None = None

    def __init__(self, source: EagleHeadSource) -> None:
        hidden, read = source.config.hidden_size, source.weights.read
        self.attention_specs: Sequence[AttentionSpec] = attention_specs(source.config)
        self._target = source.target
        self.shard = source.shard
        bias = read((hidden,), "fc.bias") if source.tensors.shape("fc.bias") else None
        self._fuse = linear(read((hidden, 2 * hidden), "fc.weight"), bias)
        self._layer = source.layer("layers.0", hidden)

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
    """An EAGLE-3 head: reads fc, midlayer.*, norm, and embed_tokens and lm_head if it has its own.

    Args:
        feature_layers: see `Drafter`.
        width: columns of its LM head. columns: see `EagleHead`; None where it drafts all tokens.
    """

    def __init__(
        self,
        source: EagleHeadSource,
        feature_layers: tuple[int, ...],
        width: int,
        columns: torch.Tensor | None,
    ) -> None:
        config, target, read = source.config, source.target, source.weights.read
        hidden = config.hidden_size
        self.attention_specs: Sequence[AttentionSpec] = attention_specs(config)
        self.feature_layers = feature_layers
        self.columns = columns
        self._eps = config.norm_eps
        self._target = target
        self._embedding: torch.Tensor | None = None
        if source.tensors.shape("embed_tokens.weight"):
            self._embedding = read((config.vocab_size, hidden), "embed_tokens.weight")
        fan_in = len(feature_layers) * target.hidden_size
        self._fuse = linear(read((hidden, fan_in), "fc.weight"))
        self._token_norm = read((hidden,), "midlayer.input_layernorm.weight")
        self._feature_norm = read((hidden,), "midlayer.hidden_norm.weight")
        self._layer = source.layer("midlayer", 2 * hidden)
        self._final_norm = read((hidden,), "norm.weight")
        self.shard = source.shard
        self._lm_head: Linear = target.logits
        if columns is not None:
            self.shard = VocabShard.whole(config.vocab_size)
            self._lm_head = logits_linear(read((width, hidden), "lm_head.weight"))
        elif source.tensors.shape("lm_head.weight"):
            self._lm_head = source.own_lm_head()

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
        return self._lm_head(rms_norm(features, self._final_norm, self._eps))

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return self._target.embed(token_ids)
        return F.embedding(token_ids, self._embedding)
