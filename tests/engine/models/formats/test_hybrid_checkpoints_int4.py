"""Hybrid models whose products are in 4 bits compute what the numbers in their files stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.startup.error_statement import hidden_states
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.models.formats.packers import Tensors, gptq, rewrite, round_weight

GROUP = -1
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
UNQUANTIZED = ("embed", "lm_head", "conv", "norm", "in_proj_a", "in_proj_b", "gate.weight")
"""Parts of the names of what checkpoints leave as it is: routers and small products among them."""


def write_both(family: str, folder: Path) -> Path:
    """Write a model in 4 bits, and beside it the same values in 32; returns the folder of these."""
    write_hybrid(config_of(family), folder)
    plain: Tensors = load_file(folder / "model.safetensors")
    stored = dict(plain)
    for name, weight in plain.items():
        if weight.dim() != 2 or any(part in name for part in UNQUANTIZED):
            continue
        rounded = round_weight(weight, GROUP, symmetric=False)
        module = name.removesuffix(".weight")
        del stored[name]
        stored |= {f"{module}.{key}": tensor for key, tensor in gptq(rounded).items()}
        plain[name] = rounded.values().float()
    assert len(stored) > len(plain) + 20
    values = folder / "values"
    values.mkdir()
    (values / "config.json").write_text((folder / "config.json").read_text())
    save_file(plain, values / "model.safetensors", metadata={"format": "pt"})
    rewrite(folder, stored, CONFIG)
    return values


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_experts", "lfm2_moe", "nemotron_h_experts"])
@torch.inference_mode()
def test_products_are_those_of_what_the_numbers_stand_for(family: str, tmp_path: Path) -> None:
    values, ids = write_both(family, tmp_path), torch.arange(3, 40)
    hidden = [
        hidden_states(
            load_model(ModelConfig(model=str(folder), dtype="float32"), torch.device("cpu")),
            ids,
            None,
        )
        for folder in (tmp_path, values)
    ]
    torch.testing.assert_close(*hidden, rtol=0, atol=1e-4)
