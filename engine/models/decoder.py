"""Runs decoders of the architectures in `options` on fused modules of our own.

A layer is a norm fused with the residual addition, one QKV product, rope with the q/k norms and
the KV write, attention, one output product, the next norm, one gate-up product, the activation and
one down product. Layers are NamedTuples of functions: calling a module costs as much as a small
kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.attention import AttentionSpec, LayerAttention
from engine.contracts.heads import Rotation
from engine.kernels.rope import rope_table
from engine.memory.states import StateSpec, StepStates
from engine.models.families.decoder_config import DecoderConfig
from engine.models.families.decoder_weights import DecoderWeights
from engine.models.families.general_weights import GeneralWeights
from engine.models.families.options import LayerOptions
from engine.models.formats.reader import QuantizedReader
from engine.models.layers.general_layers import AddNorm, RmsNorm
from engine.models.reference import AnyLayer, LayerwiseRun, Reference
from engine.models.weights.sources import ReadTwice, WeightSource
from sampling.device.ranks import LoneRank, RankExchange


class Decoder:
    """The `CausalLM` of fused layers.

    Args:
        num_positions: positions 0 to num_positions - 1 may be asked for.
        fp8, quantized: as `DecoderWeights` takes them.
        exchange: the ranks that compute each step together, of which this is one; None is one rank.
            `logits` then gives the ids of the rank's shard, and all else is the same on each.
        reference: of weights that are quantised; its hidden states are made while layers are read.

    Attributes:
        num_weights: number of weights in the layers' products, which each token multiplies; of the
            rank that has the most.
    """

    def __init__(
        self,
        config: DecoderConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int,
        *,
        fp8: bool = False,
        exchange: RankExchange | None = None,
        quantized: QuantizedReader | None = None,
        reference: Reference | None = None,
    ) -> None:
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.max_position = config.max_position
        self.dtype = dtype
        self.device = device
        self._options = config.options
        self._embedding_scale = _embedding_scale(config.options, dtype)
        self._rope_tables = [
            rope_table(speeds.inv_freq.to(device), speeds.scale, num_positions)
            for speeds in config.rotations
        ]
        self._layer_rotations = config.layer_rotations
        kind = DecoderWeights if config.is_plain else GeneralWeights
        tensors = source if reference is None else ReadTwice(source)
        make = partial(kind, config, tensors, dtype, device, exchange=exchange)
        weights = make(fp8=fp8, quantized=quantized)
        self.attention_specs: Sequence[AttentionSpec] = weights.attention_specs()
        self._embedding, self._lm_head = weights.embedding_and_lm_head()
        self._final_norm = _final_norm(weights)
        layers: Iterable[AnyLayer] = map(partial(_layer, weights), range(len(config.windows)))
        if reference is not None:
            assert isinstance(tensors, ReadTwice)
            tensors.holds = True
            unquantized = make(quantized=quantized and quantized.dequantized())
            layers = self._beside(layers, unquantized, reference)
        self._layers = list(layers)
        self.num_weights = _most(weights.num_in_layers, exchange or LoneRank())
        source.finish()

    def _beside(
        self, layers: Iterable[AnyLayer], unquantized: DecoderWeights, reference: Reference
    ) -> Iterator[AnyLayer]:
        """Give layers as they are read, and run a text through each without its quantisation.

        Args:
            unquantized: reads the tensors that `layers` have read, once more.
        """
        ids = reference.token_ids(self.vocab_size).to(self.device)
        rotations = self._rotations(torch.arange(len(ids), device=self.device))
        by_layer = [rotations[index] for index in self._layer_rotations]
        run = LayerwiseRun(self.embed(ids), by_layer, self.attention_specs)
        for index, layer in enumerate(layers):
            yield layer
            run.run(index, _layer(unquantized, index))
        reference.hidden = run.hidden(self._final_norm)

    def state_specs(self, num_drafts: int) -> Sequence[StateSpec]:
        return ()

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        embedded = F.embedding(input_ids, self._embedding)
        return embedded if self._embedding_scale == 1.0 else embedded * self._embedding_scale

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        states: StepStates | None = None,
    ) -> torch.Tensor:
        return self.forward_with_features(input_ids, positions, attention, ())[0]

    def forward_with_features(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        feature_layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run `forward`, and also return outputs of layers, which an EAGLE head reads as features.

        Args:
            feature_layers: indices, in any order and number.

        Returns:
            Hidden states, and [T, len(feature_layers) * hidden_size], None without layers.
        """
        rotations = self._rotations(positions)
        x = self.embed(input_ids)  # [T, hidden]
        residual: torch.Tensor | None = None
        outputs: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            qkv, residual = layer.qkv(x, residual)
            rotation = rotations[self._layer_rotations[index]]
            x, residual = layer.body(index, qkv, residual, rotation, attention)
            if index in feature_layers:
                outputs[index] = x + residual
        assert residual is not None
        hidden = self._final_norm.add(x, residual)[0]
        if not feature_layers:
            return hidden, None
        return hidden, torch.cat([outputs[index] for index in feature_layers], dim=-1)

    def _rotations(self, positions: torch.Tensor) -> list[Rotation]:
        return [Rotation(table, positions) for table in self._rope_tables]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, options = self._lm_head(hidden), self._options
        if options.logit_scale != 1.0:
            logits = logits * options.logit_scale
        if options.logit_softcap is not None:
            logits = options.logit_softcap * torch.tanh(logits / options.logit_softcap)
        return logits


def _most(count: int, exchange: RankExchange) -> int:
    """The largest count of any rank's."""
    return int(exchange.all_gather(torch.tensor([count])).max())


def _embedding_scale(options: LayerOptions, dtype: torch.dtype) -> float:
    scale = options.embedding_scale
    return float(torch.tensor(scale).to(dtype)) if options.rounds_embedding_scale else scale


def _layer(weights: DecoderWeights, index: int) -> AnyLayer:
    if isinstance(weights, GeneralWeights):
        return weights.general_layer(index)
    return weights.layer(index)


def _final_norm(weights: DecoderWeights) -> AddNorm:
    config = weights.config
    if isinstance(weights, GeneralWeights):
        return weights.general_norm(f"model.{config.options.names.final_norm}")
    return RmsNorm(weights.final_norm(), config.norm_eps)
