"""Tiny random heads that draft in blocks, written as they are published, and what they compute.

The mathematics is spelled out in float64 over a whole text at once, without a cache.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tests.engine.speculation.tiny_heads import PlainHead, Tensors, norm
from tests.engine.tiny_models import VOCAB

H, HEADS, KV_HEADS, D, INNER, LAYERS = 32, 4, 2, 16, 48, 2
EPS, THETA, MASK_ID, RANK, TAPS, GROUP, TOP_K = 1e-5, 10000.0, 96, 6, 2, 8, 5
TARGET_LAYERS = (4, 0, 3)
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "model_type": "qwen3",
    "attention_bias": False,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention"] * LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": D,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "tie_word_embeddings": False,
    "block_size": 6,
}
NESTED: dict[str, Any] = {"mask_token_id": MASK_ID, "target_layer_ids": list(TARGET_LAYERS)}
SELECTOR: dict[str, Any] = {
    "conv_kernel_size": TAPS,
    "conv_group_size": GROUP,
    "selector_rank": RANK,
    "selector_top_k": TOP_K,
    "output_multiplier": 0.7,
    "final_logit_softcapping": 9.0,
    "input_embedding_scale": 1.5,
}
MARKOV: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "mask_token_id": MASK_ID,
    "target_layer_ids": list(TARGET_LAYERS),
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "num_anchors": 512,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "block_size": 3,
}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape) / math.sqrt(shape[-1])


def backbone(num_features: int = len(TARGET_LAYERS)) -> Tensors:
    """The tensors that all heads have."""
    tensors = {"fc.weight": _random(H, num_features * H)}
    for name in ("hidden_norm", "norm"):
        tensors[f"{name}.weight"] = 1 + _random(H)
    shapes = {
        "self_attn.q_proj": (HEADS * D, H),
        "self_attn.k_proj": (KV_HEADS * D, H),
        "self_attn.v_proj": (KV_HEADS * D, H),
        "self_attn.o_proj": (H, HEADS * D),
        "mlp.gate_proj": (INNER, H),
        "mlp.up_proj": (INNER, H),
        "mlp.down_proj": (H, INNER),
    }
    for i in range(LAYERS):
        tensors |= {f"layers.{i}.{n}.weight": 1.5 * _random(*s) for n, s in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{i}.{name}.weight"] = 1 + _random(H)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            tensors[f"layers.{i}.{name}.weight"] = 1 + _random(D)
    return tensors


def write(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Save a head; returns its tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def write_dflash(
    folder: Path, nested: dict[str, Any] | None = None, vocab_size: int = VOCAB, **config: Any
) -> Tensors:
    """A DFlash head, whose embedding and LM head are the target's."""
    torch.manual_seed(4)
    own = {"dflash_config": NESTED | (nested or {}), "vocab_size": vocab_size}
    return write(folder, backbone(), CONFIG | own | config)


def write_dflash2(folder: Path, vocab_size: int = VOCAB, **config: Any) -> Tensors:
    """A DFlash2 head: its layers are causal in windows unless the config says they are not."""
    torch.manual_seed(5)
    tensors = backbone()
    for i in range(LAYERS):
        for part in ("attention_conv", "mlp_conv"):
            base = 0.3 * torch.randn(2, TAPS, H)
            base[:, 0] += 1.0  # as published heads begin: each place as it is
            tensors[f"layers.{i}.{part}.base_kernel"] = base
            projection = _random(2 * TAPS * H // GROUP, H)
            tensors[f"layers.{i}.{part}.kernel_projection.weight"] = projection
    for name in ("predecessor_codebook", "successor_codebook"):
        tensors[f"candidate_selector.{name}"] = 2 * torch.randn(vocab_size, RANK)
    tensors["candidate_selector.hidden_projection.weight"] = _random(RANK, H)
    own = {
        "architectures": ["DFlash2DraftModel"],
        "dflash_config": NESTED | SELECTOR,
        "vocab_size": vocab_size,
    }
    return write(folder, tensors, CONFIG | own | config)


def write_dspark(
    folder: Path,
    *,
    draft_ids: list[int] | None = None,
    vocab_size: int = VOCAB,
    **config: Any,
) -> Tensors:
    """A DSpark head with an embedding and an LM head of its own, of all ids or of some."""
    torch.manual_seed(6)
    width = vocab_size if draft_ids is None else len(draft_ids)
    tensors = backbone() | {
        "embed_tokens.weight": _random(vocab_size, H),
        "lm_head.weight": 4 * _random(width, H),
        "markov_head.markov_w1.weight": 2 * _random(vocab_size, RANK),
        "markov_head.markov_w2.weight": 4 * _random(width, RANK),
        "confidence_head.proj.weight": _random(1, H + RANK),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    own: dict[str, Any] = {"vocab_size": vocab_size}
    if draft_ids is not None:
        tensors["d2t"] = torch.tensor(draft_ids) - torch.arange(width)
        own["draft_vocab_size"] = width
    return write(folder, tensors, CONFIG | MARKOV | own | config)


class PlainBlock(PlainHead):
    """A head that drafts in blocks; `limits` are those of texts, by their first tokens.

    Args:
        num_drafts: k.
        windows, causal: of each layer.
        anchored: the newest token's place predicts the first draft.
    """

    def __init__(
        self,
        tensors: Tensors,
        target: PreTrainedModel,
        num_drafts: int,
        *,
        windows: list[int | None] | None = None,
        causal: list[bool] | None = None,
        anchored: bool = False,
        mask_embedding: torch.Tensor | None = None,
        limits: dict[int, int] | None = None,
    ) -> None:
        super().__init__(tensors, target)
        self.num_drafts, self.anchored = num_drafts, anchored
        self.windows = windows or [None] * LAYERS
        self.causal = causal or [False] * LAYERS
        self.mask_embedding, self.limits = mask_embedding, limits or {}

    def __call__(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        """The logits of what follows text and drafts."""
        hidden = self.hidden(text)
        return self.logits(hidden[len(drafts) + (not self.anchored)], text, drafts)

    def hidden(self, text: list[int]) -> torch.Tensor:
        """The hidden states [w, H] of the block that begins with the newest token."""
        w, first = self.tensors, len(text) - 1
        states = self.target_outputs(text)  # states[i + 1] is the output of layer i
        features = torch.cat([states[i + 1][:-1] for i in TARGET_LAYERS], dim=-1)
        context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
        width = self.num_drafts + (not self.anchored)
        width = min(width, self.limits.get(text[0], 1000) - first)
        embed = w.get("embed_tokens.weight", self.target.get_input_embeddings().weight)
        x = embed[torch.tensor([text[-1]] + [MASK_ID] * (width - 1))]
        if self.mask_embedding is not None:
            x[1:] = self.mask_embedding.double()
        x = x * (SELECTOR["input_embedding_scale"] if self.selects else 1.0)
        for i in range(LAYERS):
            x = self.block_layer(i, x, context)
        return norm(x, w["norm.weight"])

    @property
    def selects(self) -> bool:
        return "candidate_selector.predecessor_codebook" in self.tensors

    def block_layer(self, i: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        w = {n.removeprefix(f"layers.{i}."): t for n, t in self.tensors.items()}

        def attend(x: torch.Tensor) -> torch.Tensor:
            both, first = torch.cat([context, x]), len(context)
            q = (x @ w["self_attn.q_proj.weight"].T).view(len(x), HEADS, D)
            k, v = (
                (both @ w[f"self_attn.{n}_proj.weight"].T).view(len(both), KV_HEADS, D)
                for n in "kv"
            )
            q = rope(norm(q, w["self_attn.q_norm.weight"]), first)
            k = rope(norm(k, w["self_attn.k_norm.weight"]), 0)
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            ahead = torch.arange(len(both)) - torch.arange(first, len(both))[:, None]
            seen = torch.ones_like(ahead, dtype=torch.bool)
            if self.causal[i]:
                seen &= ahead <= 0
            if (window := self.windows[i]) is not None:
                seen &= ahead > -window
            scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(D)
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out = torch.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1)
            return out @ w["self_attn.o_proj.weight"].T

        def mlp(x: torch.Tensor) -> torch.Tensor:
            gate, up = (x @ w[f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            return (F.silu(gate) * up) @ w["mlp.down_proj.weight"].T

        for part, sublayer, name in (
            ("attention_conv", attend, "input_layernorm"),
            ("mlp_conv", mlp, "post_attention_layernorm"),
        ):
            y = norm(x, w[f"{name}.weight"])
            if not self.selects:
                x = x + sublayer(y)
                continue
            deltas = (y @ w[f"{part}.kernel_projection.weight"].T).view(len(y), 2, TAPS, -1)
            base = w[f"{part}.base_kernel"]
            out = sublayer(convolve(y, base[0], deltas[:, 0]))
            x = x + convolve(out, base[1], deltas[:, 1])
        return x

    def logits(self, h: torch.Tensor, text: list[int], drafts: list[int]) -> torch.Tensor:
        w, last = self.tensors, (drafts or text)[-1]
        head = w.get("lm_head.weight", self.target.get_output_embeddings().weight)
        logits: torch.Tensor = head @ h
        if self.selects:
            cap = SELECTOR["final_logit_softcapping"]
            logits = cap * torch.tanh(SELECTOR["output_multiplier"] * logits / cap)
            best, ids = logits.topk(TOP_K)
            factors = w["candidate_selector.predecessor_codebook"][last] * (
                w["candidate_selector.hidden_projection.weight"] @ h
            )
            scores = best + w["candidate_selector.successor_codebook"][ids] @ factors
            return torch.full_like(logits, -torch.inf).scatter(0, ids, scores)
        if "markov_head.markov_w1.weight" in w:
            step = w["markov_head.markov_w1.weight"][last]
            logits = logits + w["markov_head.markov_w2.weight"] @ step
        if "d2t" not in w:
            return logits
        full = logits.new_full((VOCAB,), -torch.inf)
        full[torch.arange(len(logits)) + w["d2t"]] = logits
        return full


def convolve(x: torch.Tensor, base: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
    """y[t, c] = sum_j (base[j, c] + deltas[t, j, c / g]) x[t - j, c] over x [w, H]."""
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for j in range(min(t + 1, TAPS)):
            out[t] += (base[j] + deltas[t, j].repeat_interleave(GROUP)) * x[t - j]
    return out


def rope(x: torch.Tensor, first: int) -> torch.Tensor:
    """Rotate heads x [T, heads, D] of positions first, first + 1, ..."""
    speeds = THETA ** -(torch.arange(0, D, 2) / D)
    angles = (first + torch.arange(len(x)))[:, None, None] * speeds
    low, high = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
