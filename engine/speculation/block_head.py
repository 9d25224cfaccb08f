"""The layers of a head that drafts a block of tokens in one forward (DFlash, DFlash2, DSpark).

Outputs of the target's layers, fused by a product and normed, are the context c: every layer makes
keys and values of the same c, which it keeps in its cache. The block's tokens, the newest one and
masks, are a stream of their own through Qwen3's layers, whose queries see the context and the
block. Keys and values of the block lie in the slots of its positions until the step that computes
these positions replaces them by those of the context.

DFlash2 has a convolution within the block before and after each sublayer:

    y[t, i] = sum over taps j of (base[j, i] + delta[t, j, i / g]) x[t - j, i]

with deltas by a product of the sublayer's input.

Letters in shapes: T tokens of the target's step, N tokens of L blocks of w tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from engine.contracts.attention import AttentionBackend, AttentionSpec
from engine.contracts.heads import Heads, Rotation
from engine.contracts.model import CausalLM
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import Attention, LoadedHeads
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import LoadedNorm, OwnInput, RmsNorm
from engine.models.weights.shares import undivided
from engine.speculation.block_config import BlockConfig, Selector

Embed = Callable[[torch.Tensor], torch.Tensor]


class BlockTokens(NamedTuple):
    """The tokens of L blocks, w each.

    Attributes:
        input_ids: int32 [N].
        is_mask: bool [N, 1], the tokens that hold the place of a draft.
        places: int64 [N, 1], of the tokens in their blocks; negative in front of a block.
        rotation: of the tokens.
    """

    input_ids: torch.Tensor
    is_mask: torch.Tensor
    places: torch.Tensor
    rotation: Rotation


class BlockConvolution:
    """The convolution around a sublayer."""

    def __init__(self, reader: WeightReader, name: str, hidden: int, selector: Selector) -> None:
        taps, groups = selector.taps, hidden // selector.group
        self._shape = (2, taps, groups, 1)
        base = reader.channels(f"{name}.base_kernel", (undivided(2),), taps, hidden)
        self._base = base.view(2, taps, groups, selector.group)
        deltas = Projection(f"{name}.kernel_projection", (undivided(2 * taps * groups),))
        self._deltas = reader.linear([deltas], undivided(hidden))

    def kernels(self, x: torch.Tensor) -> torch.Tensor:
        """The kernels [2, taps, N, groups, g] for a sublayer's input x [N, H] and its output."""
        deltas = self._deltas(x).view(len(x), *self._shape).permute(1, 2, 0, 3, 4)
        return self._base[:, :, None] + deltas

    @staticmethod
    def convolve(x: torch.Tensor, kernel: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Convolve x [N, H] by a kernel [taps, N, groups, g], each block by itself."""
        groups = x.view(kernel.shape[1:])
        out = kernel[0] * groups
        for tap in range(1, len(kernel)):
            before = groups.roll(tap, 0).masked_fill((places < tap)[:, :, None], 0.0)
            out = torch.addcmul(out, kernel[tap], before)
        return out.view(x.shape)


class BlockLayer:
    """A layer of Qwen3's kind, which also stores keys and values of the context."""

    def __init__(
        self,
        reader: WeightReader,
        name: str,
        attention: Attention,
        mlp: Mlp,
        places: LayerPlaces,
        selector: Selector | None,
    ) -> None:
        hidden = undivided(attention.hidden_size)
        q, *kv = attention.inputs(name, reader.ranks)
        self._norm = attention.norm.load(reader, hidden.length, f"{name}.")
        self._q, self._kv = reader.linear([q], hidden), reader.linear(kv, hidden)
        self._heads = cast(LoadedHeads, attention.read_heads(reader, name, places))
        lanes = attention.value_lanes(reader.ranks)
        self._o = reader.linear([attention.back(name)], lanes)
        self._mlp_norm = mlp.norm.load(reader, hidden.length, f"{name}.")
        self._mlp: Sublayer = replace(mlp, norm=OwnInput()).load(reader, name, places)
        self._convolutions: tuple[BlockConvolution, ...] = ()
        if selector is not None:
            self._convolutions = tuple(
                BlockConvolution(reader, f"{name}.{part}_conv", hidden.length, selector)
                for part in ("attention", "mlp")
            )

    def store(self, context: torch.Tensor, rotation: Rotation, attention: AttentionBackend) -> None:
        """Store keys and values of the context [T, H]."""
        own = self._heads.heads
        norm = None if own.norm is None else own.norm[own.num_q :]
        heads = Heads(0, own.num_kv, norm, own.eps)
        attention.store_product(self._heads.layer, self._kv(context), heads, rotation)

    def __call__(self, stream: Stream, tokens: BlockTokens, attention: AttentionBackend) -> Stream:
        """Map the stream's parts [N, H] of blocks, as a `Sublayer`."""
        inputs = LayerInputs(attention, (tokens.rotation,))

        def attend(x: torch.Tensor) -> torch.Tensor:
            qkv = torch.cat([self._q(x), self._kv(x)], dim=-1)
            return self._o(self._heads(qkv, inputs))

        def mlp(x: torch.Tensor) -> torch.Tensor:
            return self._mlp((x, x), inputs)[0]

        x, residual = self._norm.add(*stream)
        x = self._around(0, attend, x, tokens.places)
        x, residual = self._mlp_norm.add(x, residual)
        return self._around(1, mlp, x, tokens.places), residual

    def _around(
        self,
        part: int,
        sublayer: Callable[[torch.Tensor], torch.Tensor],
        x: torch.Tensor,
        places: torch.Tensor,
    ) -> torch.Tensor:
        """A sublayer of x [N, H], between its convolutions where it has some."""
        if not self._convolutions:
            return sublayer(x)
        convolution = self._convolutions[part]
        before, after = convolution.kernels(x)
        return convolution.convolve(
            sublayer(convolution.convolve(x, before, places)), after, places
        )


class BlockHead:
    """Fuses the target's features, keeps them as keys and values, and runs blocks over them.

    Args:
        spec: of a decoder of Qwen3's layers, as the head's config says.
        embed: the embedding of token ids, of the target or of the head's own.
        mask_embedding: [H], in place of the mask token's; None for that.

    Attributes:
        attention_specs: of its layers.
        feature_layers: see `Drafter`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        config: BlockConfig,
        reader: WeightReader,
        target: CausalLM,
        embed: Embed,
        mask_embedding: torch.Tensor | None,
    ) -> None:
        self.feature_layers = config.target_layers
        self._embed, self._mask_embedding = embed, mask_embedding
        self._scale = config.embedding_scale
        places, hidden = LayerPlaces(), undivided(spec.hidden_size)
        fan_in = len(config.target_layers) * target.hidden_size
        self._fuse = reader.laid_out("fc", hidden, fan_in).linear()
        self._context_norm = self._read_norm(spec, reader, "hidden_norm")
        self._layers: Sequence[BlockLayer] = [
            BlockLayer(
                reader,
                f"layers.{i}",
                replace(cast(Attention, layer.sublayers[0]), is_causal=is_causal),
                cast(Mlp, layer.sublayers[1]),
                places,
                config.selector,
            )
            for i, (layer, is_causal) in enumerate(zip(spec.layers, config.causal, strict=True))
        ]
        self._final_norm = self._read_norm(spec, reader, "norm")
        self.attention_specs: Sequence[AttentionSpec] = places.attention_specs

    @staticmethod
    def _read_norm(spec: DecoderSpec, reader: WeightReader, name: str) -> LoadedNorm:
        norm = replace(cast(RmsNorm, spec.final_norm), name=name)
        return norm.load(reader, spec.hidden_size)

    def store(
        self, features: torch.Tensor, rotation: Rotation, attention: AttentionBackend
    ) -> None:
        """Keep the target's features [T, F] as the layers' keys and values."""
        context = self._context_norm(self._fuse(features))
        for layer in self._layers:
            layer.store(context, rotation, attention)

    def forward(self, tokens: BlockTokens, attention: AttentionBackend) -> torch.Tensor:
        """The hidden states [N, H] of blocks, after the final norm."""
        x = self._embed(tokens.input_ids)
        if self._mask_embedding is not None:
            x = torch.where(tokens.is_mask, self._mask_embedding, x)
        if self._scale != 1.0:
            x = x * self._scale
        stream: Stream = (x, None)
        for layer in self._layers:
            stream = layer(stream, tokens, attention)
        return self._final_norm.add(*stream)[0]
