"""Models that several ranks divide, and their logits."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.models.weights.sources import Checkpoint
from sampling.device.ranks import RankExchange
from sampling.noise import TILE
from tests.engine.models.serving import (
    GROUPED,
    LATENT,
    PagedRows,
    expected,
    some_ids,
)
from tests.engine.models.small_models import MODELS as FAMILIES

CPU = torch.device("cpu")
VOCAB = 4 * TILE + 9
WIDE = {**GROUPED, "vocab_size": VOCAB}

EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}

DIVIDED_LATENT = {**LATENT, "num_key_value_heads": 4, "first_k_dense_replace": 1}

GENERAL = (
    "apertus",
    "cohere-biases",
    "cohere2",
    "ernie",
    "ernie-moe",
    "gemma",
    "gemma2",
    "gemma3",
    "glm",
    "glm4",
    "gpt-oss",
    "granite",
    "hunyuan",
    "minimax-m2",
    "ministral3",
    "olmo2",
    "olmo2-ungrouped",
    "olmo3",
    "phi",
    "phi-tied",
    "phi3-partial",
    "smollm3",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
)
"""Names in `FAMILIES`, which have too few ids to be divided."""

NEWER = [name for name in FAMILIES if name.startswith(("gemma4", "mistral4"))]
"""Those that transformers 5.0 does not have."""


def widened(config: PreTrainedConfig, **fields: Any) -> PreTrainedConfig:
    """A config with a vocabulary of several tiles."""
    names = ("vocab_size", "vocab_size_per_layer_input")
    wide = {name: VOCAB for name in names if hasattr(config, name)}
    return type(config)(**config.to_dict() | wide | fields)


def write_config(config: PreTrainedConfig, folder: Path) -> None:
    """Write a folder that has a config alone."""
    architecture = re.sub("(Text)?Config$", "ForCausalLM", type(config).__name__)
    type(config)(**config.to_dict() | {"architectures": [architecture]}).save_pretrained(folder)


MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**WIDE),
    "tied": LlamaConfig(**WIDE, tie_word_embeddings=True),
    "biases": LlamaConfig(**WIDE, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**WIDE),
    "qwen3": Qwen3Config(**WIDE, head_dim=16),
    "mixtral": MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
    "shared expert": Qwen2MoeConfig(**WIDE, **EXPERTS, shared_expert_intermediate_size=40),
    "qwen3-moe": Qwen3MoeConfig(**WIDE, **EXPERTS, head_dim=16, mlp_only_layers=[0]),
    "olmoe": OlmoeConfig(**WIDE, num_experts=6, num_experts_per_tok=3, clip_qkv=0.5),
    "deepseek-v2-lite": DeepseekV2Config(**WIDE | DIVIDED_LATENT),
    "deepseek-v3": DeepseekV3Config(
        **WIDE | DIVIDED_LATENT | {"q_lora_rank": 24}, n_group=3, topk_group=2
    ),
    **{name: widened(FAMILIES[name]) for name in (*GENERAL, *NEWER)},
}

PARTS = [(0, 0, 20), (1, 0, 7), (2, 0, 1)]


@torch.inference_mode()
def logits_of(folder: Path, exchange: RankExchange, **settings: Any) -> torch.Tensor:
    """A rank's part of the logits of a few tokens, [28, width]."""
    model = load_model(ModelConfig(model=str(folder), **settings), CPU, exchange)
    return torch.cat(PagedRows(model, 3).step(some_ids(), PARTS))


def wanted_of(reference: Any) -> torch.Tensor:
    """transformers' logits of those tokens, [28, VOCAB]."""
    logits = expected(reference, some_ids())
    return torch.cat([logits[row, :last] for row, _, last in PARTS])


def count_parts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many numbers are read as parts of each tensor from now on."""
    sizes, fill_part = Counter[str](), Checkpoint.fill_part

    def reading(
        checkpoint: Checkpoint, target: torch.Tensor, name: str, *args: Any, **kwargs: Any
    ) -> None:
        sizes[name] += target.numel()
        fill_part(checkpoint, target, name, *args, **kwargs)

    monkeypatch.setattr(Checkpoint, "fill_part", reading)
    return sizes
