"""The multi-token-prediction head that a checkpoint has for its own target.

A product fuses the normed embedding of the next token with the normed hidden state of the target,
after its final norm; layers of the target's kind, with keys and values of their own, and a norm
follow. The output stands for the next hidden state: it goes through the target's LM head, and in
its place into the next draft. Embeddings and LM head are the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.drafter import VerifiedStep
from engine.contracts.model import CausalLM
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.decoder_spec import DraftingSpec
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream
from engine.models.layers.rotation import RotationSpeeds
from engine.models.weights.shares import undivided
from sampling.vocab_shard import VocabShard


class MtpHead:
    """The `EagleHead` of a `DraftingSpec`.

    Args:
        shard: the ids of the target's logits.

    Attributes:
        rotation: the speeds of its layers.
    """

    feature_layers: tuple[int, ...] = ()
    columns: torch.Tensor | None = None

    def __init__(
        self, spec: DraftingSpec, reader: WeightReader, target: CausalLM, shard: VocabShard
    ) -> None:
        hidden, places = target.hidden_size, LayerPlaces()
        self.shard = shard
        self._target = target
        self._embedding_norm = spec.embedding_norm.load(reader, hidden)
        self._hidden_norm = spec.hidden_norm.load(reader, hidden)
        fuse = Projection(spec.fuse, (undivided(hidden),))
        self._fuse = reader.linear([fuse], undivided(2 * hidden))
        self._sublayers = [each for layer in spec.layers for each in layer.load(reader, places)]
        self._final_norm = spec.final_norm.load(reader, hidden)
        self.attention_specs: Sequence[AttentionSpec] = places.attention_specs
        self.rotation: RotationSpeeds = places.rotations[0]
        self.named = reader.named_weights()

    def features(self, step: VerifiedStep) -> torch.Tensor:
        return step.hidden

    def forward(
        self, token_ids: torch.Tensor, features: torch.Tensor, inputs: LayerInputs
    ) -> torch.Tensor:
        embedded = self._embedding_norm(self._target.embed(token_ids))
        x = self._fuse(torch.cat([embedded, self._hidden_norm(features)], dim=-1))
        stream: Stream = (x, None)
        for sublayer in self._sublayers:
            stream = sublayer(stream, inputs)
        return self._final_norm.add(*stream)[0]

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._target.logits(features)
