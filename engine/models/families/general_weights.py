"""Reads layers with options that a Llama's have not, see `LayerOptions`."""

from __future__ import annotations

from functools import partial

import torch

from engine.contracts.heads import Heads
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.linear import Linear
from engine.models.families.decoder_weights import DecoderWeights
from engine.models.families.options import RMS, RMS_PLUS_ONE
from engine.models.formats.parts import Part, join
from engine.models.layers.general_layers import (
    Activation,
    AddedProduct,
    AddNorm,
    GeneralLayer,
    LayerNorm,
    Map,
    NoNorm,
    ParallelBody,
    RmsNorm,
    SequentialBody,
    WideRmsNorm,
    norm_heads,
)
from engine.models.layers.layers import prepare_qkv
from engine.parallel.collectives import rank_sum, summed


class GeneralWeights(DecoderWeights):
    """Reads tensors by the names of a model's `LayerOptions`."""

    def embedding_and_lm_head(self) -> tuple[torch.Tensor, Linear]:
        """The embedding [vocab, hidden], and the product that makes float32 logits."""
        embedding, lm_head = super().embedding_and_lm_head()
        if not self.config.options.lm_head_bias:
            return embedding, lm_head
        bias = self.read((self._vocab.width,), "lm_head.bias").float()
        return embedding, lambda hidden: lm_head(hidden) + bias

    def general_norm(self, name: str | None) -> AddNorm:
        """Read a norm; none without a name."""
        config, options = self.config, self.config.options
        if name is None:
            return NoNorm()
        weight = self.read((config.hidden_size,), f"{name}.weight")
        if options.norm == RMS:
            return RmsNorm(weight, config.norm_eps)
        if options.norm == RMS_PLUS_ONE:
            return WideRmsNorm(1.0 + weight.float(), config.norm_eps)
        bias = self.read(weight.shape, f"{name}.bias") if options.norm_bias else None
        return LayerNorm(weight, bias, config.norm_eps)

    def general_layer(self, index: int) -> GeneralLayer:
        """Read a layer."""
        config, names = self.config, self.config.options.names
        prefix = f"model.layers.{index}"
        norm = self.general_norm(_named(prefix, names.attention_norm))
        part, bias = self._turned_qkv(prefix)
        if config.options.parallel:
            body = self._parallel(prefix)
            gate_up, gate_up_bias = self._gate_up(prefix)
            part = join([part, gate_up])
            bias = _joined(bias, body.qkv_width, gate_up_bias, self._gate_up_width)
            return GeneralLayer(AddedProduct(norm, self._linear(part, bias)), body)
        return GeneralLayer(AddedProduct(norm, self._linear(part, bias)), self._sequential(prefix))

    def _turned_qkv(self, prefix: str) -> tuple[Part, torch.Tensor | None]:
        """Read the QKV product, lanes of queries and keys in the order of our kernels."""
        config, names = self.config, self.config.options.names
        q_width, kv_width = self._widths()
        if len(names.qkv) == 1:
            widths = {names.qkv[0]: q_width + 2 * kv_width}
        else:
            widths = dict(zip(names.qkv, (q_width, kv_width, kv_width), strict=True))
        has_bias = config.options.qkv_bias
        part, bias = self._part(f"{prefix}.self_attn", widths, config.hidden_size, has_bias)
        if config.lane_order is None:
            return part, bias
        rows = torch.arange(q_width + 2 * kv_width, device=self._device)
        self._turn(rows[: q_width + kv_width])
        return part.channels(rows), None if bias is None else bias[rows]

    def _turn(self, heads: torch.Tensor) -> None:
        """Order the lanes of heads [heads * head_dim] in place."""
        order = self.config.lane_order
        if order is not None:
            split = heads.view(-1, self.config.head_dim)
            split.copy_(split[:, order.to(heads.device)])

    def _widths(self) -> tuple[int, int]:
        config = self.config
        return config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def _heads(self) -> Heads:
        config = self.config
        return Heads(config.num_q_heads, config.num_kv_heads, None, config.norm_eps)

    def _qk_norms(self, prefix: str) -> Map | None:
        """Read the norms of queries and keys, of every head alone or over all heads."""
        config = self.config
        if config.options.qk_norm is None:
            return None
        names = [f"{prefix}.self_attn.{name}_norm.weight" for name in ("q", "k")]
        whole = config.whole_qk_norm
        widths = self._widths() if whole else (config.head_dim, config.head_dim)
        norms = tuple(self.read((w,), name) for w, name in zip(widths, names, strict=True))
        for norm in norms:
            self._turn(norm)
        if whole:
            return partial(prepare_qkv, norms, config.norm_eps, None, self._exchange)
        q_norm, k_norm = (WideRmsNorm(1.0 + norm.float(), config.norm_eps) for norm in norms)
        return partial(norm_heads, q_norm, k_norm, *self._widths())

    @property
    def _gate_up_width(self) -> int:
        return self.config.intermediate_size * (1 + self.config.options.gated)

    def _gate_up(self, prefix: str) -> tuple[Part, torch.Tensor | None]:
        config, options = self.config, self.config.options
        names = options.names.gate_up
        widths = {name: self._gate_up_width // len(names) for name in names}
        return self._part(f"{prefix}.mlp", widths, config.hidden_size, options.mlp_bias)

    def _o(self, prefix: str) -> Linear | Fp8Linear:
        config, options = self.config, self.config.options
        widths = {options.names.o: config.hidden_size}
        part = self._part(f"{prefix}.self_attn", widths, self._widths()[0], options.o_bias)
        return self._linear(*part)

    def _down(self, prefix: str) -> Linear | Fp8Linear:
        config, options = self.config, self.config.options
        widths = {options.names.down: config.hidden_size}
        part = self._part(f"{prefix}.mlp", widths, config.intermediate_size, options.mlp_bias)
        return self._linear(*part)

    def _sequential(self, prefix: str) -> SequentialBody:
        options = self.config.options
        names = options.names
        mlp_norm = self.general_norm(_named(prefix, names.mlp_norm))
        return SequentialBody(
            o=summed(self._o(prefix), self._exchange),
            gate_up=AddedProduct(mlp_norm, self._linear(*self._gate_up(prefix))),
            activation=Activation(options.activation, options.gated),
            down=summed(self._down(prefix), self._exchange),
            heads=self._heads(),
            prepare=self._qk_norms(prefix),
            after_attention=self._after(_named(prefix, names.after_attention)),
            after_mlp=self._after(_named(prefix, names.after_mlp)),
        )

    def _parallel(self, prefix: str) -> ParallelBody:
        options, (q_width, kv_width) = self.config.options, self._widths()
        is_lone = self._exchange.size == 1
        return ParallelBody(
            o=self._o(prefix),
            activation=Activation(options.activation, options.gated),
            down=self._down(prefix),
            heads=self._heads(),
            qkv_width=q_width + 2 * kv_width,
            of_ranks=None if is_lone else partial(rank_sum, exchange=self._exchange),
        )

    def _after(self, name: str | None) -> Map | None:
        """Read the norm behind attention or MLP, or scale what they add."""
        scale = self.config.options.residual_scale
        if name is not None:
            norm = self.general_norm(name)
            assert isinstance(norm, RmsNorm | WideRmsNorm)
            return norm.__call__
        return None if scale == 1.0 else partial(torch.mul, scale)


def _named(prefix: str, name: str | None) -> str | None:
    return None if name is None else f"{prefix}.{name}"


def _joined(
    first: torch.Tensor | None, width: int, second: torch.Tensor | None, second_width: int
) -> torch.Tensor | None:
    """The biases of two products of some widths that became one."""
    one = second if first is None else first
    if one is None:
        return None
    pairs = ((first, width), (second, second_width))
    return torch.cat([one.new_zeros(size) if own is None else own for own, size in pairs])
