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
from dataclasses import replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import AttentionSpec
from engine.contracts.drafter import VerifiedStep
from engine.contracts.model import CausalLM
from engine.contracts.named_weights import NamedWeights
from engine.kernels.linear import Linear, logits_linear
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import Layer, LayerInputs, LayerPlaces, Stream, Sublayer, sum_of
from engine.models.layers.norms import LoadedNorm, OwnInput, RmsNorm
from engine.models.weights.shares import RankShare, undivided
from engine.models.weights.stored import WeightSource
from sampling.vocab_shard import VocabShard


class EagleHead(Protocol):
    """The decoder layer that drafts, with what it reads and an LM head.

    Attributes:
        attention_specs: of its one layer.
        feature_layers: see `Drafter`.
        columns: int32 [vocab_size], the column of `logits` of each token of the target, -1 for
            tokens never drafted; None where columns are ids of the `shard`.
        shard: the ids of `logits`; all of them, on every rank, with `columns`.
        named: its weights.
    """

    attention_specs: Sequence[AttentionSpec]
    feature_layers: tuple[int, ...]
    columns: torch.Tensor | None
    shard: VocabShard
    named: NamedWeights

    def features(self, step: VerifiedStep) -> torch.Tensor:
        """The EAGLE head's features [T, H] of the target's step."""
        ...

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor, inputs: LayerInputs
    ) -> torch.Tensor:
        """Predict the features at the next positions, [N, H].

        Args:
            token_ids: int32 [N], the tokens at the next positions.
            features: [N, H], at the current positions; may be overwritten.
            inputs: the rotation of the current positions, and attention, which has begun.
        """
        ...

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """The float32 logits [N, width] of outputs of `forward`."""
        ...


class EagleHeadSource:
    """The description, weights and target from which an EAGLE head is built.

    Args:
        spec: of a decoder with one layer, as the EAGLE head's config says.
        shard: the ids of the target's logits.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: WeightSource,
        target: CausalLM,
        device: torch.device,
        shard: VocabShard,
    ) -> None:
        self.shard = shard
        self.spec = spec
        self.tensors = tensors
        self.target = target
        self.reader = WeightReader.of(tensors, target.dtype, device)

    @property
    def attention(self) -> Attention:
        """The description of the layer's attention, as all families of `HEADS` have it."""
        return cast(Attention, self.spec.layers[0].sublayers[0])

    def fuse(self, fan_in: int) -> Linear:
        """Read the product that makes features of a width, whose bias is there or not."""
        hidden, bias = undivided(self.spec.hidden_size), None
        weight = self.reader.laid_out("fc", hidden, fan_in)
        if self.tensors.shape("fc.bias"):
            bias = self.reader.tensor("fc.bias", hidden)
        return weight.linear(bias)

    def norm(self, name: str) -> LoadedNorm:
        """Read a norm of the kind that the layer has, of a name."""
        norm = replace(cast(RmsNorm, self.attention.norm), name=name)
        return norm.load(self.reader, self.spec.hidden_size)

    def own_lm_head(self) -> Linear:
        """Read the rows of the EAGLE head's own LM head that make the logits of the shard."""
        shard = self.shard
        own = RankShare(shard.first, shard.width, shard.vocab_size)
        return self.lm_head(own)

    def lm_head(self, own: RankShare) -> Linear:
        """Read rows of the EAGLE head's own LM head."""
        return logits_linear(self.reader.laid_out("lm_head", own, self.spec.hidden_size))

    def layer(self, name: str, fan_in: int) -> EagleLayer:
        """Read the layer of a name, over inputs of a width, which no norm is in front of."""
        attention = replace(self.attention, norm=OwnInput(), fan_in=fan_in)
        layer = Layer(name, (attention, *self.spec.layers[0].sublayers[1:]))
        places = LayerPlaces()
        return EagleLayer(layer.load(self.reader, places), places.attention_specs)


class EagleLayer:
    """A decoder layer without a norm in front of its attention."""

    def __init__(
        self, sublayers: Sequence[Sublayer], attention_specs: Sequence[AttentionSpec]
    ) -> None:
        self.attention_specs = attention_specs
        self._sublayers = sublayers

    def __call__(self, stream: Stream, inputs: LayerInputs) -> torch.Tensor:
        """Compute [N, H] from attention's input [N, fan_in] and a residual that is overwritten."""
        for sublayer in self._sublayers:
            stream = sublayer(stream, inputs)
        return sum_of(stream)


class Eagle1Head:
    """An EAGLE-1 head: reads fc.* and layers.0.*."""

    feature_layers: tuple[int, ...] = ()
    columns: torch.Tensor | None = None

    def __init__(self, source: EagleHeadSource) -> None:
        hidden = source.spec.hidden_size
        self._target = source.target
        self.shard = source.shard
        self._fuse = source.fuse(2 * hidden)
        self._layer = source.layer("layers.0", hidden)
        self.attention_specs = self._layer.attention_specs
        self.named = source.reader.named_weights()

    def features(self, step: VerifiedStep) -> torch.Tensor:
        return step.hidden

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor, inputs: LayerInputs
    ) -> torch.Tensor:
        x = self._fuse(torch.cat([self._target.embed(token_ids), features], dim=-1))
        return self._layer((x, x), inputs)

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
        spec, target = source.spec, source.target
        hidden = spec.hidden_size
        self.feature_layers = feature_layers
        self.columns = columns
        self._target = target
        self._embedding: torch.Tensor | None = None
        if source.tensors.shape("embed_tokens.weight"):
            self._embedding = source.reader.matrix(
                "embed_tokens.weight", undivided(spec.vocab_size), hidden
            )
        self._fuse = source.fuse(len(feature_layers) * target.hidden_size)
        self._token_norm = source.norm("midlayer.input_layernorm")
        self._feature_norm = source.norm("midlayer.hidden_norm")
        self._layer = source.layer("midlayer", 2 * hidden)
        self.attention_specs = self._layer.attention_specs
        self._final_norm = source.norm("norm")
        self.shard = source.shard
        self._lm_head: Linear = target.logits
        if columns is not None:
            self.shard = VocabShard.whole(spec.vocab_size)
            self._lm_head = source.lm_head(undivided(width))
        elif source.tensors.shape("lm_head.weight"):
            self._lm_head = source.own_lm_head()
        self.named = source.reader.named_weights()

    def features(self, step: VerifiedStep) -> torch.Tensor:
        assert step.features is not None
        return self._fuse(step.features)

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor, inputs: LayerInputs
    ) -> torch.Tensor:
        tokens = self._token_norm(self._embed(token_ids))
        x = torch.cat([tokens, self._feature_norm(features)], dim=-1)
        return self._layer((x, features), inputs)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._lm_head(self._final_norm(features))

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return self._target.embed(token_ids)
        return F.embedding(token_ids, self._embedding)
