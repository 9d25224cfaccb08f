"""Tiny checkpoints whose multi-token-prediction head is layers after the last, as of DeepSeek-V3,
GLM-4.7 and Nemotron 3, and what these compute, spelled out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.engine.tiny_models import VOCAB

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
NEMOTRON: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_shared_expert_intermediate_size": 24,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "time_step_min": 1e-30,  # transformers raises step sizes to it in its chunks alone
}
KINDS = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "nemotron_h")
PATTERNS = {"nemotron_h": "*E", "nemotron_h_states": "M*E"}
"""The layers of Nemotron's targets, which `*E` follows as the head."""


class PlainNextLayers(torch.nn.Module):
    """The head over a whole text at once, of layers that transformers made for the target."""

    def __init__(self, target: PreTrainedModel, layers: list[torch.nn.Module]) -> None:
        super().__init__()
        hidden = target.config.hidden_size
        eps = getattr(target.config, "rms_norm_eps", None) or target.config.layer_norm_epsilon
        self.enorm, self.hnorm, self.norm = (torch.nn.RMSNorm(hidden, eps) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self._peers: Any = (target, layers)  # a tuple: not of its own weights

    def forward(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        """The logits of what follows text and drafts."""
        target, layers = self._peers
        decoder = target.get_decoder()
        hidden = decoder(input_ids=torch.tensor([text]), use_cache=False).last_hidden_state[:, :-1]
        tokens = torch.tensor([text[1:] + drafts])
        rotary = getattr(decoder, "rotary_emb", None)
        for _ in range(len(drafts) + 1):
            embedded = self.enorm(target.get_input_embeddings()(tokens))[:, : hidden.shape[1]]
            x = self.eh_proj(torch.cat([embedded, self.hnorm(hidden)], dim=-1))
            positions = torch.arange(x.shape[1])[None]
            given: dict[str, Any] = {
                "attention_mask": torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None],
                "position_ids": positions,
            }
            if rotary is not None:
                given["position_embeddings"] = rotary(x, positions)
            for layer in layers:
                x = layer(x, **given)
            hidden = torch.cat([hidden, self.norm(x)[:, -1:]], dim=1)
        logits: torch.Tensor = target.lm_head(hidden[0, -1])
        return logits


def config_of(kind: str, vocab_size: int, *, with_head: bool) -> PreTrainedConfig:
    """A config of the target's layers, and of the head's as further layers."""
    own: dict[str, Any] = {"num_nextn_predict_layers": 1, "num_hidden_layers": 2 + with_head}
    own["vocab_size"] = vocab_size
    match kind:
        case "deepseek_v3":
            return hf.DeepseekV3Config(**SIZES, **LATENT, **own, first_k_dense_replace=1)
        case "glm4_moe":
            own |= {"num_key_value_heads": 2, "head_dim": 16, "first_k_dense_replace": 1}
            return hf.Glm4MoeConfig(**SIZES, **own, use_qk_norm=True)
        case "glm4_moe_lite":
            return hf.Glm4MoeLiteConfig(**SIZES, **LATENT, **own)
        case _:
            del own["num_hidden_layers"]
            pattern = PATTERNS[kind] + "*E" * with_head
            return hf.NemotronHConfig(**SIZES, **NEMOTRON, **own, hybrid_override_pattern=pattern)


def write_with_next_layers(
    kind: str, folder: Path, vocab_size: int = VOCAB
) -> tuple[PreTrainedModel, PlainNextLayers]:
    """Save a random float32 target and its head, as one checkpoint; returns both."""
    torch.manual_seed(5)
    whole = config_of(kind, vocab_size, with_head=True)
    target = AutoModelForCausalLM.from_config(whole, attn_implementation="eager").float().eval()
    decoder, num_layers = target.get_decoder(), len(PATTERNS.get(kind, "12"))
    head = PlainNextLayers(target, list(decoder.layers[num_layers:]))
    with torch.no_grad():
        for parameter in (*target.parameters(), *head.parameters()):
            spread = 0.2 if parameter.dim() > 1 else 0.1
            parameter.add_(spread * torch.randn_like(parameter))
        for name, buffer in target.named_buffers():
            if name.endswith("correction_bias"):
                buffer.copy_(0.2 * torch.randn_like(buffer))
    target.save_pretrained(folder)
    decoder.layers = decoder.layers[:num_layers]
    config = config_of(kind, vocab_size, with_head=False)
    if kind not in PATTERNS:
        target.config.num_hidden_layers = num_layers
    described = config.to_dict() | {"architectures": [type(target).__name__]}
    (folder / "config.json").write_text(json.dumps(described))
    first, last = f"model.layers.{num_layers}", f"model.layers.{num_layers}.shared_head.norm"
    tensors = load_file(folder / "model.safetensors")
    if kind in PATTERNS:
        first, last = "mtp.layers.0", "mtp.layers.1.final_layernorm"
        for i in range(2):
            tensors = {
                name.replace(f"backbone.layers.{num_layers + i}.", f"mtp.layers.{i}."): tensor
                for name, tensor in tensors.items()
            }
    for name, tensor in head.state_dict().items():
        own = last if name == "norm.weight" else f"{first}.{name.removesuffix('.weight')}"
        tensors[f"{own}.weight"] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return target, head
