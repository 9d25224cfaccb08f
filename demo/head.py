"""The demo model's EAGLE head (Li et al. 2024, EAGLE-1): one decoder layer over target features.

Letters in shapes: B windows, T positions, H hidden size, V vocabulary.

The entry at position i is made of the target's feature f[i] (its hidden state after the final
norm) and the embedding of the token at i + 1; the output there predicts f[i + 1], so the
target's own head turns it into q, the distribution of the token at i + 2. Drafting goes on from an
output as if it were the feature. `rollout` does so at every position at once, with the text's own
tokens, as a draft that is worth a look had them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from demo.llama import model_config

INTERMEDIATE_SIZE = 1024
Entries = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values [B, heads, T, head_dim] of each draft step so far, heads repeated."""


def head_config() -> LlamaConfig:
    """The head's shape: 1.11M parameters, 2.2 MB in bfloat16; its width is the target's."""
    config = model_config()
    config.num_hidden_layers = 1
    config.intermediate_size = INTERMEDIATE_SIZE
    config.architectures = ["LlamaForCausalLM"]  # what the published heads' configs say
    return config


class HeadAttention(nn.Module):
    """Attention of draft step j: true entries up to i - j, then one entry a step, its own last."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.repeats = config.num_attention_heads // config.num_key_value_heads
        q_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, config.hidden_size, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], entries: Entries
    ) -> torch.Tensor:
        """x [B, T, H]; appends the step's keys and values to `entries`."""
        split = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (
            p(x).view(split).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        entries.append((k.repeat_interleave(self.repeats, 1), v.repeat_interleave(self.repeats, 1)))
        keys, values = (torch.cat(parts, dim=2) for parts in zip(*entries, strict=True))
        if len(entries) == 1:
            out = scaled_dot_product_attention(q, keys, values, is_causal=True)
        else:
            mask = visible_entries(x.shape[1], len(entries) - 1, x.device)
            out = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        projected: torch.Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


def visible_entries(length: int, step: int, device: torch.device) -> torch.Tensor:
    """The entries that the query at position i of a draft step sees: bool [T, (step + 1) * T]."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    made = [distance == step - m for m in range(1, step + 1)]
    return torch.cat([distance >= step, *made], dim=1)


class HeadLayer(nn.Module):
    """A Llama layer without the norm in front of attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = HeadAttention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], entries: Entries
    ) -> torch.Tensor:
        x = x + self.self_attn(x, rotation, entries)
        added: torch.Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


class TrainableEagleHead(nn.Module):
    """A trainable EAGLE-1 head; the engine serves the weights that `save_head` writes.

    Parameters have the names of the published heads.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config)])
        self.rotary = LlamaRotaryEmbedding(config)

    def rollout(
        self, embeddings: torch.Tensor, features: torch.Tensor, num_steps: int
    ) -> list[torch.Tensor]:
        """The outputs of `num_steps` draft steps at each position, [B, T, H] a step.

        The output of step j at position i predicts f[i + 1] and is drafted with true features
        up to i - j; at i < j it means nothing.

        Args:
            embeddings: [B, T, H], of the tokens at i + 1. features: [B, T, H], the target's.
        """
        positions = torch.arange(features.shape[1], device=features.device)[None]
        rotation = self.rotary(features, positions)
        outputs: list[torch.Tensor] = []
        entries: Entries = []
        for _ in range(num_steps):
            x = self.fc(torch.cat([embeddings, features], dim=-1))
            outputs.append(self.layers[0](x, rotation, entries))
            features = torch.cat([features[:, :1], outputs[-1][:, :-1]], dim=1)
        return outputs

    def outputs(
        self,
        target: LlamaForCausalLM,
        ids: torch.Tensor,
        states: Sequence[torch.Tensor],
        num_steps: int,
    ) -> list[torch.Tensor]:
        """See `demo.acceptance.MeasuredHead`."""
        embeddings = target.model.embed_tokens(ids[:, 1:])
        outputs = self.rollout(embeddings, states[-1][:, :-1], num_steps)
        return [output[:, :-1] for output in outputs]


def save_head(head: TrainableEagleHead, folder: Path) -> None:
    """Write config.json and bfloat16 weights; embedding and output matrix are the target's."""
    config = head.config.to_diff_dict() | {"bias": False, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = {n: p.detach().to("cpu", torch.bfloat16) for n, p in head.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load_head(folder: Path) -> TrainableEagleHead:
    """A float32 head on the CPU."""
    head = TrainableEagleHead(LlamaConfig.from_pretrained(folder))
    head.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return head
