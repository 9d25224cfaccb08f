"""Lays out the tensors of a Llama-family checkpoint for the fused decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeGuard

import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.heads import Heads
from engine.kernels.experts.layer import Experts
from engine.kernels.experts.weights import Fp8Experts, Weights
from engine.kernels.fp8 import FP8, quantize_rows
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear, logits_linear
from engine.kernels.norm_linear import Fp8NormedProduct, NormedLinear, NormedProduct
from engine.models.families.decoder_config import DecoderConfig, attention_specs
from engine.models.families.shards import ShardedWeights
from engine.models.families.shares import shard_config, shares_of
from engine.models.formats.parts import DensePart, Fp8Part, Part
from engine.models.formats.reader import QuantizedReader
from engine.models.layers.experts import products_per_token, read_experts
from engine.models.layers.latent import ValueLanes, first_widths, read_latent_heads
from engine.models.layers.layers import (
    Body,
    DividedExperts,
    Fp8Mlp,
    Layer,
    Mlp,
    Normed,
    prepare_qkv,
)
from engine.models.weights.sources import WeightSource
from engine.parallel.collectives import summed
from sampling.device.ranks import LoneRank, RankExchange
from sampling.vocab_shard import VocabShard


class DecoderWeights:
    """Reads tensors by their transformers names and fuses them as they are read.

    Args:
        fp8: quantize the weights of the layers' products as they are read, a scale an output
            channel; embedding and LM head stay as they are.
        exchange: the ranks whose parts make up the model; None is one rank.
        quantized: reads the products of a checkpoint that is quantised; None is one that is not.

    Attributes:
        config: the sizes of this rank's part.
        num_in_layers: number of weights in the products read so far.
    """

    def __init__(
        self,
        config: DecoderConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8: bool = False,
        exchange: RankExchange | None = None,
        quantized: QuantizedReader | None = None,
    ) -> None:
        self._exchange = exchange or LoneRank()
        self._vocab = VocabShard.split(config.vocab_size, self._exchange)
        self.config, self._source = config, source
        if self._exchange.size > 1:
            group = 1 if quantized is None else quantized.quantization.input_group
            shares = shares_of(config, self._exchange, group)
            self.config = shard_config(config, shares)
            rank, size, whole_norms = self._exchange.rank, self._exchange.size, config.whole_qk_norm
            shards = ShardedWeights(source, shares, rank, size, whole_norms=whole_norms)
            self._source = shards
            if quantized is not None:
                quantized.shards = shards
        self._dtype = dtype
        self._device = device
        self._fp8 = fp8
        self._quantized = quantized
        self.num_in_layers = 0

    def embedding_and_lm_head(self) -> tuple[torch.Tensor, Linear]:
        """The embedding [vocab, hidden], and the product that makes the shard's float32 logits."""
        hidden, vocab = self.config.hidden_size, self._vocab
        embedding = self.read((vocab.vocab_size, hidden), "model.embed_tokens.weight")
        if self.config.tied:
            return embedding, logits_linear(embedding[vocab.first : vocab.first + vocab.width])
        if self._quantized is None:
            return embedding, logits_linear(self.read((vocab.width, hidden), "lm_head.weight"))
        # Few are quantised: as what they say.
        lm_head = self._quantized.part("lm_head", vocab.width, hidden).dequantized()
        return embedding, logits_linear(lm_head.to(self._dtype))

    def attention_specs(self) -> list[AttentionSpec]:
        """The attention of each layer, sinks read."""
        specs = attention_specs(self.config)
        if not self.config.options.sinks:
            return specs
        read = []
        for index, spec in enumerate(specs):
            name = f"model.layers.{index}.self_attn.sinks"
            sinks = self.read_float32((spec.num_q_heads,), name)
            read.append(replace(spec, sinks=sinks))
        return read

    def final_norm(self) -> torch.Tensor:
        return self.read((self.config.hidden_size,), "model.norm.weight")

    def layer(self, index: int) -> Layer:
        config, prefix = self.config, f"model.layers.{index}"
        norm = self.read((config.hidden_size,), f"{prefix}.input_layernorm.weight")
        widths, experts = self._qkv_widths(), config.experts
        weight = self._part(f"{prefix}.self_attn", widths, config.hidden_size, config.qkv_bias)
        with_experts = experts is not None and experts.layers[index]
        return Layer(self._normed(norm, *weight), self.body(prefix, with_experts=with_experts))

    def qkv(self, prefix: str, fan_in: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Read weight and bias of a layer's QKV product over `fan_in` features."""
        return self._fused(f"{prefix}.self_attn", self._qkv_widths(), fan_in, self.config.qkv_bias)

    def _qkv_widths(self) -> dict[str, int]:
        config = self.config
        if config.latent is not None:
            return first_widths(config.latent, config.num_q_heads)
        kv_width = config.num_kv_heads * config.head_dim
        q_width = config.num_q_heads * config.head_dim
        return {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}

    def body(self, prefix: str, *, with_experts: bool = False) -> Body:
        """Read the rest of a layer."""
        config, attention = self.config, f"{prefix}.self_attn"
        return Body(
            o=self._heads_out(attention),
            mlp=self._experts(prefix) if with_experts else self._mlp(prefix),
            heads=Heads(
                num_q=config.num_q_heads,
                num_kv=config.num_kv_heads,
                norm=self._qk_norm(attention) if config.qk_norm else None,
                eps=config.norm_eps,
            ),
            prepare=self._prepare(attention),
        )

    def _heads_out(self, prefix: str) -> Linear | Fp8Linear:
        """Read the output product of an attention."""
        config, latent = self.config, self.config.latent
        value = config.head_dim if latent is None else latent.value
        widths, fan_in = {"o_proj": config.hidden_size}, config.num_q_heads * value
        own = self._linear(*self._part(prefix, widths, fan_in, config.o_bias))
        product = summed(own, self._exchange)
        return product if latent is None else ValueLanes(product, config.head_dim, value).__call__

    def read(self, shape: tuple[int, ...], name: str) -> torch.Tensor:
        """Read a tensor as it is in the checkpoint, in the model's dtype."""
        target = self._empty(shape)
        self._source.fill(target, name)
        return target

    def read_float32(self, shape: tuple[int, ...], name: str) -> torch.Tensor:
        """Read a tensor in float32, whatever the model's dtype."""
        target = torch.empty(shape, device=self._device)
        self._source.fill(target, name)
        return target

    def _qk_norm(self, prefix: str) -> torch.Tensor:
        config = self.config
        q_norm = self.read((config.head_dim,), f"{prefix}.q_norm.weight")
        k_norm = self.read((config.head_dim,), f"{prefix}.k_norm.weight")
        return torch.cat(
            [q_norm.repeat(config.num_q_heads, 1), k_norm.repeat(config.num_kv_heads, 1)]
        )

    def _prepare(self, prefix: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Read what is done with a QKV product before it is turned."""
        config = self.config
        if config.latent is not None:
            return read_latent_heads(config.latent, config.num_q_heads, self, prefix).__call__
        if not config.whole_qk_norm and config.clip_qkv is None:
            return None
        norms: tuple[torch.Tensor, ...] = ()
        if config.whole_qk_norm:
            widths = (config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim)
            names = (f"{prefix}.q_norm.weight", f"{prefix}.k_norm.weight")
            norms = tuple(self.read((w,), name) for w, name in zip(widths, names, strict=True))
        return partial(prepare_qkv, norms, config.norm_eps, config.clip_qkv, self._exchange)

    def _experts(self, prefix: str) -> Experts | DividedExperts:
        """Read a layer's experts and the norm in front of them."""
        config, experts = self.config, self.config.experts
        assert experts is not None
        norm = self.read((config.hidden_size,), f"{prefix}.post_attention_layernorm.weight")
        self.num_in_layers += products_per_token(experts, config.hidden_size)
        read = read_experts(experts, self, prefix, norm, config.norm_eps)
        return read if self._exchange.size == 1 else DividedExperts(read, self._exchange)

    def part(
        self, module: str, num_channels: int, width: int, channels: torch.Tensor | None = None
    ) -> Part:
        """Read one module's weight, quantized as the checkpoint or the configuration says.

        Args:
            channels: as of `QuantizedReader.part`; None where the checkpoint is not quantized.
        """
        if self._quantized is not None:
            return self._quantized.part(module, num_channels, width, channels)
        weight = self.read((num_channels, width), f"{module}.weight")
        return Fp8Part(quantize_rows(weight)) if self._fp8 else DensePart(weight)

    def part_by_groups(
        self, module: str, num_channels: int, width: int
    ) -> tuple[Part, torch.Tensor | None]:
        """Read a weight and its inputs in their groups' order; see `QuantizedReader`."""
        if self._quantized is not None:
            return self._quantized.part_by_groups(module, num_channels, width)
        return self.part(module, num_channels, width), None

    def place(self, module: str) -> str:
        """A module's name for errors, behind its file where it is quantised."""
        return module if self._quantized is None else self._quantized.place(module)

    def experts(self, module: str, shape: tuple[int, int, int]) -> Weights:
        """Read all experts' weights [experts, out, in] of one tensor, quantized likewise.

        Unquantized they are stored as [experts, in, out].
        """
        if self._quantized is not None:
            return self._quantized.experts(module, shape)
        num_experts, num_channels, width = shape
        stored = self.read((num_experts, width, num_channels), module)
        weights = stored.transpose(1, 2).contiguous()
        if not self._fp8:
            return weights
        rows = [quantize_rows(weight) for weight in weights]
        values = torch.stack([each.values.view(torch.uint8) for each in rows]).view(FP8)
        return Fp8Experts(values, torch.stack([each.scales for each in rows]))

    def unquantized(self, module: str, num_channels: int, width: int) -> torch.Tensor:
        """Read one module's weight in the model's dtype, whatever the configuration says."""
        if self._quantized is not None:
            part = self._quantized.part(module, num_channels, width)
            return part.dequantized().to(self._dtype)
        return self.read((num_channels, width), f"{module}.weight")

    def product(self, prefix: str, widths: dict[str, int], fan_in: int) -> Linear | Fp8Linear:
        """Read a product of projections of the same input, without biases."""
        return self._linear(*self._part(prefix, widths, fan_in, False))

    def _fused(
        self, prefix: str, widths: dict[str, int], fan_in: int, has_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Read weight and bias of projections of the same input, their outputs in order."""
        weight = self._empty((sum(widths.values()), fan_in))
        self.num_in_layers += weight.numel()
        bias = self._empty((len(weight),)) if has_bias else None
        start = 0
        for name, width in widths.items():
            part = slice(start, start := start + width)
            self._source.fill(weight[part], f"{prefix}.{name}.weight")
            if bias is not None:
                self._source.fill(bias[part], f"{prefix}.{name}.bias")
        return weight, bias

    def _part(
        self, prefix: str, widths: dict[str, int], fan_in: int, has_bias: bool
    ) -> tuple[Part, torch.Tensor | None]:
        """Read `_fused`, quantized as the checkpoint or the configuration says."""
        if self._quantized is not None:
            self.num_in_layers += sum(widths.values()) * fan_in
            return self._quantized.read(prefix, widths, fan_in, has_bias)
        weight, bias = self._fused(prefix, widths, fan_in, has_bias)
        return (Fp8Part(quantize_rows(weight)) if self._fp8 else DensePart(weight)), bias

    def _linear(self, part: Part, bias: torch.Tensor | None) -> Linear | Fp8Linear:
        return part.product(bias, self._dtype)

    def _normed(
        self, norm: torch.Tensor, part: Part, bias: torch.Tensor | None, *, gated: bool = False
    ) -> Normed:
        """Make a product behind a norm."""
        eps = self.config.norm_eps
        if isinstance(part, DensePart):
            return NormedProduct(norm, eps, part.weight, bias, gated=gated)
        if _rounds_behind_norms(part) and not gated:
            return Fp8NormedProduct(norm, eps, part.rows, bias)
        return NormedLinear(norm, eps, part.product(bias, self._dtype), gated=gated)

    def _mlp(self, prefix: str) -> Mlp | Fp8Mlp:
        """Read a layer's MLP and the norm in front of it."""
        config, mlp = self.config, f"{prefix}.mlp"
        hidden, inner, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        norm = self.read((hidden,), f"{prefix}.post_attention_layernorm.weight")
        widths = {"gate_proj": inner, "up_proj": inner}
        gate_up, bias = self._part(mlp, widths, hidden, has_bias)
        down, down_bias = self._part(mlp, {"down_proj": hidden}, inner, has_bias)
        if _rounds_behind_norms(gate_up) and _rounds_behind_norms(down):
            first = Fp8NormedProduct(norm, config.norm_eps, gate_up.rows, bias)
            last = Fp8Linear(down.rows, down_bias, self._dtype)
            return Fp8Mlp(first, summed(last, self._exchange))
        gated = self._normed(norm, gate_up, bias, gated=True)
        assert not isinstance(gated, Fp8NormedProduct)
        return Mlp(gated, summed(self._linear(down, down_bias), self._exchange))

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def _rounds_behind_norms(part: Part) -> TypeGuard[Fp8Part]:
    """Whether the kernel in front of a product may round its input."""
    return isinstance(part, Fp8Part) and part.quantizes_as_norms_do
