"""Runs the decoder that a family describes: embeddings, layers in order, a norm, the LM head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.heads import Rotation
from engine.contracts.model import Hidden, ModelInputs
from engine.contracts.named_weights import NamedWeights
from engine.kernels.rope import rope_table
from engine.memory.states import StateSpec
from engine.models.formats.reader import WeightReader
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, sum_of
from engine.models.reference import LayerwiseRun, Reference
from sampling.device.ranks import RankExchange


class Decoder:
    """The `CausalLM` of our own layers.

    Of several ranks, `logits` gives the ids of the rank's shard, and all else is the same on each.

    Args:
        reader: of its weights, or of one rank's parts of them.
        num_positions: positions 0 to num_positions - 1 may be asked for.
        reference: of weights that are quantized; its hidden states are made while layers are read,
            from a reader over `ReadTwice`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        reader: WeightReader,
        num_positions: int,
        reference: Reference | None = None,
    ) -> None:
        self.vocab_size, self.hidden_size = spec.vocab_size, spec.hidden_size
        self.max_position, self.num_feature_layers = spec.max_position, len(spec.layers)
        self.dtype, self.device = reader.dtype, reader.device
        self.routes = reader.routes
        self._num_positions = num_positions
        sizes, places = (spec.vocab_size, spec.hidden_size), LayerPlaces()
        self._embedding = spec.embedding.load(reader, *sizes)
        self._lm_head = spec.lm_head.load(reader, *sizes, self._embedding)
        self._per_layer = None if spec.per_layer is None else spec.per_layer.load(reader)
        self._final_norm = spec.final_norm.load(reader, spec.hidden_size)
        if reference is None:
            self._layers = [layer.load(reader, places) for layer in spec.layers]
        else:
            self._layers = list(self._load_beside(spec, reader, places, reference))
        self.attention_specs: Sequence[AttentionSpec] = places.attention_specs
        self._states, self._rope_tables = places.states, self._tables(places)
        self.is_capturable = bool(places.attention_specs)
        self.num_weights = _most(reader.num_in_layers, reader.ranks.exchange)
        self._named = reader.named_weights()
        reader.finish()

    def named_weights(self) -> NamedWeights:
        return self._named

    def state_specs(self, num_drafts: int) -> Sequence[StateSpec]:
        return [make(num_drafts) for make in self._states]

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self._embedding(input_ids)

    def forward(self, inputs: ModelInputs, feature_layers: Sequence[int] = ()) -> Hidden:
        input_ids, positions, attention, states = inputs
        rotations = [Rotation(table, positions) for table in self._rope_tables]
        x = self._embedding(input_ids)  # [T, hidden]
        per_layer = None if self._per_layer is None else self._per_layer(input_ids, x)
        layer_inputs = LayerInputs(attention, rotations, states, per_layer, {})
        stream: Stream = (x, None)
        outputs: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            for sublayer in layer:
                stream = sublayer(stream, layer_inputs)
            if index in feature_layers:
                outputs[index] = sum_of(stream)
        final = self._final_norm.add(*stream)[0]
        if not feature_layers:
            return Hidden(final)
        return Hidden(final, torch.cat([outputs[index] for index in feature_layers], dim=-1))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._lm_head(hidden)

    def _load_beside(
        self, spec: DecoderSpec, reader: WeightReader, places: LayerPlaces, reference: Reference
    ) -> Iterator[list[Sublayer]]:
        """Load layers, and run a text through each without its quantization."""
        unquantized = reader.as_unquantized()
        ids = reference.token_ids(self.vocab_size).to(self.device)
        embedded = self.embed(ids)
        per_layer = None if self._per_layer is None else self._per_layer(ids, embedded)
        run = LayerwiseRun(embedded, per_layer)
        for layer in spec.layers:
            yield layer.load(reader, places)
            own = LayerPlaces()
            sublayers = layer.load(unquantized, own)
            positions = torch.arange(len(ids), device=self.device)
            rotations = [Rotation(table, positions) for table in self._tables(own)]
            run.run(sublayers, own, rotations)
        reference.hidden = run.hidden(self._final_norm)

    def _tables(self, places: LayerPlaces) -> list[torch.Tensor]:
        return [
            rope_table(speeds.inv_freq.to(self.device), speeds.scale, self._num_positions)
            for speeds in places.rotations
        ]


def _most(count: int, exchange: RankExchange) -> int:
    """The largest count of any rank's."""
    return int(exchange.all_gather(torch.tensor([count])).max())
