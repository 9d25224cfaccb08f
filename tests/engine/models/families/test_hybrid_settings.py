"""Rare settings of hybrid families: served as transformers reads them, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig

from engine.errors import ModelError
from engine.messages.request import PromptLogprobsParams
from tests.engine.models.families.hybrid_models import FAMILIES, config_of, prompt, write_hybrid
from tests.engine.models.families.hybrid_server import serve
from tests.engine.models.serving import load

ARCHITECTURES = {"falcon_h1": "FalconH1ForCausalLM", "granite": "GraniteMoeHybridForCausalLM"}
ROTATED = {"rope_type": "default", "rope_theta": 1000.0}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo-rotated": ("olmo_hybrid", {"rope_parameters": ROTATED}),
    "falcon-bias-of-attention": (
        "falcon_h1",
        {"attention_bias": True, "attention_in_multiplier": 1.0},
    ),
    "falcon-bias-of-in-proj": ("falcon_h1", {"mamba_proj_bias": True, "ssm_in_multiplier": 1.0}),
    "falcon-bias-of-out-proj": ("falcon_h1", {"projectors_bias": True}),
    "granite-groups": ("granite", {"mamba_n_groups": 2}),
    "granite-rotated": ("granite", {"position_embedding_type": "rope"}),
    "nemotron-tied": ("nemotron_h", {"tie_word_embeddings": True}),
    "nemotron-bias": ("nemotron_h", {"use_bias": True}),
    "nemotron-other-bias": ("nemotron_h", {"mamba_proj_bias": True}),
    # Of Qwen3-Next's config; transformers does not read them here.
    "qwen3.5-expert-settings": (
        "qwen3_5_experts",
        {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [0]},
    ),
}
if "kimi_linear" in FAMILIES:
    SERVED["kimi-tied"] = ("kimi_linear", {"tie_word_embeddings": True})
REFUSED = [
    ("falcon_h1", {"attention_bias": True}, r"attention_bias with attention_in_multiplier 0\.9"),
    ("falcon_h1", {"mamba_proj_bias": True}, r"mamba_proj_bias with ssm_in_multiplier 1\.2"),
    ("falcon_h1", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    (
        "granite",
        {
            "position_embedding_type": "rope",
            "rope_parameters": ROTATED | {"partial_rotary_factor": 0.5},
        },
        r"partial_rotary_factor 0\.5",
    ),
]


def with_settings(family: str, settings: dict[str, Any]) -> PreTrainedConfig:
    config = config_of(family)
    for name, value in settings.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize("name", SERVED)
def test_served(name: str, tmp_path: Path) -> None:
    server = serve(tmp_path, write_hybrid(with_settings(*SERVED[name]), tmp_path))
    for length in (40, 17):
        server.submit(prompt(length), prompt_logprobs=PromptLogprobsParams())
    server.run()


@pytest.mark.parametrize(("family", "settings", "reason"), REFUSED)
def test_refused_by_name(
    family: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = with_settings(family, settings)
    config.architectures = [ARCHITECTURES[family]]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"is not supported: {reason}, which the fused decoder"):
        load(tmp_path, load_format="dummy")
