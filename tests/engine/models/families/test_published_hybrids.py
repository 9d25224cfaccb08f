"""Hybrid models by configs as their authors published them; see test_published_configs.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from tests.engine.models.families.hybrid_models import DELTA, VOCAB, prompt, write_hybrid
from tests.engine.models.families.hybrid_server import serve

CONFIGS: dict[str, dict[str, Any]] = {
    "OlmoHybridForCausalLM": DELTA
    | {
        "model_type": "olmo_hybrid",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
        "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_theta": None},  # it rotates nothing
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_served(name: str, tmp_path: Path) -> None:
    content = json.dumps(CONFIGS[name] | {"architectures": [name]})
    (tmp_path / "config.json").write_text(content)
    reference = write_hybrid(AutoConfig.from_pretrained(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text(content)  # transformers wrote its own names
    server = serve(tmp_path, reference)
    server.submit(prompt(40))
    server.run()
