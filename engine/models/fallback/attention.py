"""Routes the attention of transformers' modules to a `LayerAttention`.

Modules that look their attention up in transformers' AttentionInterface find ours there; the
others get a replacement from `adapters`. Either way a call ends in the hook attached to
the module: while a model is loaded a `Recorder`, which learns what each layer's attention is, from
then on a `PagedHook`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from engine.contracts.attention import AttentionSpec, LayerAttention
from engine.errors import ModelError
from engine.models.fallback.masks import describe_mask, window_of

SERVING = "tailrace"
"""Name of the attention implementation that serves; it has no mask function, so that transformers
builds no mask."""
RECORDING = "tailrace_recording"
"""Name of the one that records; its mask function describes the mask instead of building it."""

UNKNOWN_FEATURES = {
    "position_bias": "relative position bias",
    "indices": "sparse attention by a token indexer",
    "block_indices": "sparse attention by a block indexer",
}


class Features(NamedTuple):
    """The features of a module's attention, as in AttentionSpec."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


class Qkv(NamedTuple):
    """What a module attends over.

    Attributes:
        q: [1, heads, T, D]. k: [1, kv_heads, T, D]. v: [1, kv_heads, T, V].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class AttentionHook(Protocol):
    """Computes the attention of modules."""

    def attend(self, module: nn.Module, qkv: Qkv, features: Features | None) -> torch.Tensor:
        """Attend: [1, T, heads, V]. `features` may be None once recorded."""
        ...


class Recorder:
    """Collects each layer's AttentionSpec in the order the layers attend; returns zeros."""

    def __init__(self, num_positions: int) -> None:
        self.num_positions = num_positions
        self.specs: list[AttentionSpec] = []
        self.layers: dict[nn.Module, int] = {}

    def attend(self, module: nn.Module, qkv: Qkv, features: Features | None) -> torch.Tensor:
        assert features is not None
        q, k, v = qkv
        if module in self.layers:
            raise ModelError("layers that attend several times with shared weights")
        if q.shape[0] != 1 or q.shape[2] != k.shape[2] or v.shape[-1] > q.shape[-1]:
            raise ModelError(
                "its attention reads other tokens than the sequence's own, as cross-attention "
                "does; give a decoder-only model as MODEL"
            )
        self.layers[module] = len(self.specs)
        self.specs.append(
            AttentionSpec(
                num_q_heads=q.shape[1],
                num_kv_heads=k.shape[1],
                head_dim=q.shape[-1],
                scale=features.scale,
                sliding_window=features.window,
                softcap=features.softcap,
                alibi_slopes=features.alibi_slopes,
                sinks=features.sinks,
            )
        )
        return q.new_zeros((1, q.shape[2], q.shape[1], v.shape[-1]))


class PagedHook:
    """Attends through `backend`, which each forward sets."""

    def __init__(self, layers: dict[nn.Module, int]) -> None:
        self._layers = layers
        self.backend: LayerAttention | None = None

    def attend(self, module: nn.Module, qkv: Qkv, features: Features | None) -> torch.Tensor:
        assert self.backend is not None
        q, k, v = (x[0].transpose(0, 1) for x in qkv)  # [T, heads, D]
        width = v.shape[-1]
        if width < q.shape[-1]:  # latent attention: values narrower than keys
            v = F.pad(v, (0, q.shape[-1] - width))
        out = self.backend.attend(self._layers[module], q, k, v)
        return out[None, ..., :width]


def hook_of(module: nn.Module) -> AttentionHook:
    """The hook attached to a module by `attach`."""
    return cast(AttentionHook, module.tailrace_hook)


def attach(model: nn.Module, hook: AttentionHook, implementation: str) -> None:
    """Send the attention of all of a model's modules to `hook`."""
    for module in model.modules():
        module.tailrace_hook = hook  # type: ignore[assignment]  # an attribute, not a submodule
    model.config._attn_implementation = implementation  # type: ignore[union-attr]


def _serve(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    return hook_of(module).attend(module, Qkv(query, key, value), None), None


def _record(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    for name, feature in UNKNOWN_FEATURES.items():
        if others.get(name) is not None:
            raise ModelError(feature)
    if others.get("is_causal") is False:
        raise ModelError("bidirectional attention")
    recorder = cast(Recorder, hook_of(module))
    features = Features(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=window_of(attention_mask, recorder.num_positions),
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.detach().float(),
    )
    return recorder.attend(module, Qkv(query, key, value), features), None


def register() -> None:
    """Make both implementations known to transformers."""
    AttentionInterface.register(SERVING, _serve)
    AttentionInterface.register(RECORDING, _record)
    AttentionMaskInterface.register(RECORDING, describe_mask)
