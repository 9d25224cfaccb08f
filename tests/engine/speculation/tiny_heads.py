"""Tiny random EAGLE heads, written as they are published, and what they compute, spelled out."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tests.engine.tiny_models import VOCAB

H, HEADS, KV_HEADS, D, INNER = 32, 4, 2, 8, 48
EPS, THETA = 1e-5, 10000.0
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,  # published heads name fewer than they serve
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "tie_word_embeddings": False,
}
Tensors = dict[str, torch.Tensor]


def layer_tensors(prefix: str, fan_in: int) -> Tensors:
    shapes = {
        "self_attn.q_proj": (HEADS * D, fan_in),
        "self_attn.k_proj": (KV_HEADS * D, fan_in),
        "self_attn.v_proj": (KV_HEADS * D, fan_in),
        "self_attn.o_proj": (H, HEADS * D),
        "mlp.gate_proj": (INNER, H),
        "mlp.up_proj": (INNER, H),
        "mlp.down_proj": (H, INNER),
    }
    tensors = {f"{prefix}.{name}.weight": _random(*shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}.post_attention_layernorm.weight": 1 + _random(H)}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape) / math.sqrt(shape[-1])


def write_head(folder: Path, tensors: Tensors, **config: object) -> Tensors:
    """Save a head; returns its tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def write_eagle1(folder: Path, *, bias: bool, **config: object) -> Tensors:
    torch.manual_seed(1)
    tensors = {"fc.weight": 2 * _random(H, 2 * H)} | layer_tensors("layers.0", H)
    tensors["embed_tokens.weight"] = torch.zeros(VOCAB, H)  # the target's, which nobody reads
    if bias:
        tensors["fc.bias"] = _random(H)
    return write_head(folder, tensors, bias=bias, **config)


def write_eagle3(
    folder: Path,
    *,
    draft_ids: list[int] | None,
    vocab_size: int = VOCAB,
    is_own: bool = True,
    **config: object,
) -> Tensors:
    """With `draft_ids` for a reduced vocabulary; without, embedding and LM head are its own or not.

    Args:
        vocab_size: the target's.
    """
    config["vocab_size"] = vocab_size
    torch.manual_seed(2)
    tensors = {"fc.weight": _random(H, 3 * H)} | layer_tensors("midlayer", 2 * H)
    for norm in ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm"):
        tensors[f"{norm}.weight"] = 1 + _random(H)
    if draft_ids is None and is_own:
        tensors["embed_tokens.weight"] = _random(vocab_size, H)
        tensors["lm_head.weight"] = 4 * _random(vocab_size, H)
    if draft_ids is None:
        return write_head(folder, tensors, **config)
    ids = torch.tensor(draft_ids)
    tensors["lm_head.weight"] = 4 * _random(len(ids), H)
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.isin(torch.arange(vocab_size), ids)
    return write_head(folder, tensors, **{"draft_vocab_size": len(ids)} | config)


class PlainHead:
    """A head over a whole text at once, without a cache, in float64."""

    def __init__(self, tensors: Tensors, target: PreTrainedModel) -> None:
        self.tensors = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        self.target = copy.deepcopy(target).double()

    def layer(self, prefix: str, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """One decoder layer over x [T, fan_in], normed or not; [T, H]."""
        w = {n.removeprefix(f"{prefix}."): t for n, t in self.tensors.items()}
        q, k, v = (
            (x @ w[f"self_attn.{n}_proj.weight"].T).view(len(x), -1, D).transpose(0, 1)
            for n in "qkv"
        )
        q, k = self._rope(q), self._rope(k)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
        seen = torch.ones(len(x), len(x)).tril() > 0
        scores = (q @ k.transpose(1, 2) / math.sqrt(D)).masked_fill(~seen, -torch.inf)
        attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1)
        x = residual + attended @ w["self_attn.o_proj.weight"].T
        normed = norm(x, w["post_attention_layernorm.weight"])
        gate, up = (normed @ w[f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        return x + (F.silu(gate) * up) @ w["mlp.down_proj.weight"].T

    def _rope(self, x: torch.Tensor) -> torch.Tensor:
        speeds = THETA ** -(torch.arange(0, D, 2) / D)
        angles = torch.arange(x.shape[1])[:, None] * speeds
        low, high = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def target_outputs(self, text: list[int]) -> tuple[torch.Tensor, ...]:
        """Outputs of the embedding and each layer but the last, then the normed last: [T, H]."""
        ids = torch.tensor([text])
        out = self.target.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        return tuple(state[0] for state in out.hidden_states)


class PlainEagle1(PlainHead):
    def __call__(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        """The head's logits of what follows text and drafts."""
        features = self.target_outputs(text)[-1][:-1]  # of all tokens but the newest
        embed, w = self.target.get_input_embeddings().weight, self.tensors
        tokens = text[1:] + drafts
        for _ in range(len(drafts) + 1):
            x = torch.cat([embed[tokens[: len(features)]], features], dim=-1) @ w["fc.weight"].T
            x = x + w.get("fc.bias", 0.0)
            out = self.layer("layers.0", x, x)
            features = torch.cat([features, out[-1:]])
        logits: torch.Tensor = self.target.lm_head(features[-1])
        return logits


class PlainEagle3(PlainHead):
    def __init__(self, tensors: Tensors, target: PreTrainedModel, layers: tuple[int, ...]) -> None:
        super().__init__(tensors, target)
        self.layers = layers

    def __call__(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        w = self.tensors
        states = self.target_outputs(text)  # states[i + 1] is the output of layer i
        fused = torch.cat([states[i + 1][:-1] for i in self.layers], dim=-1) @ w["fc.weight"].T
        embed = w.get("embed_tokens.weight", self.target.get_input_embeddings().weight)
        tokens = text[1:] + drafts
        for _ in range(len(drafts) + 1):
            normed = norm(embed[tokens[: len(fused)]], w["midlayer.input_layernorm.weight"])
            x = torch.cat([normed, norm(fused, w["midlayer.hidden_norm.weight"])], dim=-1)
            out = self.layer("midlayer", x, fused)
            fused = torch.cat([fused, out[-1:]])
        logits = w["lm_head.weight"] @ norm(fused[-1], w["norm.weight"])
        if "d2t" not in w:
            return logits
        full = logits.new_full((VOCAB,), -torch.inf)
        full[torch.arange(len(logits)) + w["d2t"]] = logits
        return full


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
