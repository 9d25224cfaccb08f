"""A tiny checkpoint with a multi-token-prediction head, and what that computes, spelled out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)

from tests.engine.tiny_models import VOCAB

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


class PlainMtp(torch.nn.Module):
    """The head over a whole text at once, of transformers' modules, by the checkpoint's names."""

    def __init__(self, target: Qwen3_5ForCausalLM) -> None:
        super().__init__()
        config = Qwen3_5TextConfig(
            **target.config.to_dict() | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
        )
        config._attn_implementation = "eager"
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(hidden, eps)
        self.layers = torch.nn.ModuleList([Qwen3_5DecoderLayer(config, 0)])
        self.norm = Qwen3_5RMSNorm(hidden, eps)
        self._peers = (target, Qwen3_5TextRotaryEmbedding(config))  # a tuple: not of its weights

    def forward(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        """The logits of what follows text and drafts."""
        target, rotary = self._peers
        ids = torch.tensor([text])
        hidden = target.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        tokens = torch.tensor([text[1:] + drafts])
        for _ in range(len(drafts) + 1):
            embedded = self.pre_fc_norm_embedding(target.model.embed_tokens(tokens))
            embedded = embedded[:, : hidden.shape[1]]
            x = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], dim=-1))
            positions = torch.arange(x.shape[1]).expand(3, 1, -1)  # time, height, width
            seen = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
            out = self.layers[0](x, rotary(x, positions), attention_mask=seen)
            hidden = torch.cat([hidden, self.norm(out)[:, -1:]], dim=1)
        logits: torch.Tensor = target.lm_head(hidden[0, -1])
        return logits


def write_with_mtp(
    folder: Path, layer_types: list[str], vocab_size: int = VOCAB, **sizes: int
) -> tuple[PreTrainedModel, PlainMtp]:
    """Save a random float32 target and its head, as one checkpoint; returns both."""
    torch.manual_seed(4)
    config = Qwen3_5TextConfig(
        **SIZES | sizes,
        vocab_size=vocab_size,
        num_hidden_layers=len(layer_types),
        layer_types=layer_types,
    )
    target = Qwen3_5ForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    head = PlainMtp(target).eval()
    # Of wider layers so much less that their sums, and with them errors of float32, are no larger.
    narrow = math.sqrt(SIZES["hidden_size"] / config.hidden_size)
    with torch.no_grad():
        for parameter in (*target.parameters(), *head.parameters()):
            spread = 0.2 * narrow if parameter.dim() > 1 else 0.1
            parameter.add_(spread * torch.randn_like(parameter))
    target.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    own = {f"mtp.{name}": tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors | own, folder / "model.safetensors", metadata={"format": "pt"})
    return target, head
