"""Makes attention modules that bypass transformers' AttentionInterface use our hooks.

An adapter replaces, on each attention module, the method that ends in scores and softmax. What
comes before it (projections, rotations) and after it stays the module's own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.errors import ModelError
from engine.models.fallback.attention import Features, Qkv, hook_of


def install_adapters(model: nn.Module) -> None:
    """Replace the attention of the modules that need it.

    Raises:
        ModelError: a module is configured in a way that cannot be expressed.
    """
    for module in list(model.modules()):
        kind = type(module)
        adapt = ADAPTERS.get(
            f"{kind.__module__.removeprefix('transformers.models.')}.{kind.__name__}"
        )
        if adapt is not None:
            adapt(module)


def serving_inputs(base: nn.Module) -> dict[str, torch.Tensor]:
    """Inputs a base model needs, beyond tokens and positions, to build no mask."""
    if type(base).__name__ == "MptModel":
        # It calls a method of its mask; one of four dimensions is passed through as it is.
        device = next(base.parameters()).device
        return {"attention_mask": torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=device)}
    return {}


def alibi_slopes(num_heads: int, device: torch.device) -> torch.Tensor:
    """The slopes of ALiBi (Press et al. 2022), float32 [num_heads].

    They are 2^(-8 i / p) for i = 1 to p, the largest power of two up to num_heads; attention
    heads over p take the midpoints.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    midpoints = [2.0 ** (-8.0 * (i + 0.5) / power) for i in range(power)]
    return torch.tensor((slopes + midpoints)[:num_heads], dtype=torch.float32, device=device)


def _adapt_bloom(module: Any) -> None:
    slopes = alibi_slopes(module.num_heads, module.dense.weight.device)
    features = Features(scale=module.inv_norm_factor, alibi_slopes=slopes)

    def forward(
        hidden_states: torch.Tensor, residual: torch.Tensor, **_: Any
    ) -> tuple[torch.Tensor, None]:
        q, k, v = module._reshape(module.query_key_value(hidden_states))
        out = hook_of(module).attend(module, Qkv(q, k, v), features)
        return module.dense(out.flatten(2)) + residual, None

    module.forward = forward


def _adapt_mpt(module: Any) -> None:
    slopes = alibi_slopes(module.n_heads, module.out_proj.weight.device)
    features = Features(scale=module.softmax_scale, alibi_slopes=slopes)

    def forward(hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        qkv = module.Wqkv(hidden_states)
        if module.clip_qkv:
            qkv = qkv.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        heads = qkv.view(*qkv.shape[:2], 3, module.n_heads, module.head_dim)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each [1, heads, T, D]
        out = hook_of(module).attend(module, Qkv(q, k, v), features)
        return module.out_proj(out.flatten(2)), None

    module.forward = forward


def _adapt_falcon(module: Any) -> None:
    if module.config.alibi:
        # transformers rounds these biases to bfloat16 whatever the dtype, by absolute position.
        raise ModelError(
            'Falcon\'s bfloat16 ALiBi ("alibi": true in config.json); '
            'give a Falcon with "alibi": false as MODEL'
        )
    features = Features(scale=module.head_dim**-0.5)
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    num_kv = module.num_kv_heads

    def forward(
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        qkv = module.query_key_value(hidden_states)
        # Each key head is stored as its query heads, its key, its value.
        heads = qkv.view(*qkv.shape[:2], num_kv, -1, module.head_dim)
        q, k, v = (
            part.flatten(2, 3).transpose(1, 2)  # [1, heads, T, D]
            for part in (heads[..., :-2, :], heads[..., -2:-1, :], heads[..., -1:, :])
        )
        q, k = rotate(q, k, *position_embeddings)
        out = hook_of(module).attend(module, Qkv(q, k, v), features)
        return module.dense(out.flatten(2)), None

    module.forward = forward


def _adapt_attn(scale: float | None, window: Callable[[Any], int | None]) -> Callable[[Any], None]:
    """Make an adapter for modules whose `_attn(q, k, v, mask)` does nothing but attend."""

    def adapt(module: Any) -> None:
        features = Features(
            scale=module.head_dim**-0.5 if scale is None else scale, window=window(module)
        )

        def attn(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
        ) -> tuple[torch.Tensor, None]:
            # Rotations may have been computed in a wider type than the cache holds.
            q, k = query.to(value.dtype), key.to(value.dtype)
            out = hook_of(module).attend(module, Qkv(q, k, value), features)
            return out.transpose(1, 2), None

        module._attn = attn

    return adapt


def _all_keys(_: Any) -> None:
    return None


def _gpt_neo_window(module: Any) -> int | None:
    return module.config.window_size if module.attention_type == "local" else None


ADAPTERS: dict[str, Callable[[Any], None]] = {
    "bloom.modeling_bloom.BloomAttention": _adapt_bloom,
    "codegen.modeling_codegen.CodeGenAttention": _adapt_attn(None, _all_keys),
    "falcon.modeling_falcon.FalconAttention": _adapt_falcon,
    "gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention": _adapt_attn(1.0, _gpt_neo_window),
    "gptj.modeling_gptj.GPTJAttention": _adapt_attn(None, _all_keys),
    "mpt.modeling_mpt.MptAttention": _adapt_mpt,
}
"""The adapter of each transformers module and class that needs one."""
