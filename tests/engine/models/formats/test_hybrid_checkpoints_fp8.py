"""Hybrid models whose products are in float8 by blocks, as Qwen3.5's are published.

The oracle is transformers' model of the same values, each quantized product of its layers in
float64 over inputs rounded by numpy. Where an input lies in the middle of two float8 numbers,
float32's error may round it the other way: some 1 in 2^16 of the 12,000 rounded here, each with
√12 of a usual rounding's error, √12 / √12,000 = 0.03 of that of all roundings. A block's scale in
another block's place changes all of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedConfig

from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.startup.error_statement import hidden_states
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.models.formats.float8_scheme import BLOCKS, by_blocks, by_span, product
from tests.engine.models.formats.packers import Tensors, rewrite

IDS = torch.arange(3, 11)
UNQUANTIZED = ("embed", "lm_head", "conv", "norm", "in_proj_a", "in_proj_b")
"""Parts of the names of what checkpoints leave as it is."""


def wide_config() -> PreTrainedConfig:
    """Products of more than a block, whose edges are not those of blocks."""
    config = config_of("qwen3_5")
    config.linear_value_head_dim, config.intermediate_size = 40, 144
    return config


def write_both(folder: Path) -> tuple[Any, set[str]]:
    """Write a model in float8 blocks; returns transformers' of its values, and what is kept."""
    reference = write_hybrid(wide_config(), folder)
    stored: Tensors = load_file(folder / "model.safetensors")
    values, kept = dict(stored), set[str]()
    for name, weight in values.items():
        module = name.removesuffix(".weight")
        if weight.dim() != 2 or any(part in name for part in UNQUANTIZED):
            kept.add(module)
            continue
        tensors, values[name] = by_blocks(weight)
        stored |= {f"{module}.{key}": tensor for key, tensor in tensors.items()}
    assert any(scale.numel() > 1 for name, scale in stored.items() if name.endswith("scale_inv"))
    rewrite(folder, stored, BLOCKS | {"modules_to_not_convert": sorted(kept)})
    reference.load_state_dict(values)
    return reference, kept


@torch.inference_mode()
def test_products_are_those_of_rounded_inputs_and_values(tmp_path: Path) -> None:
    reference, kept = write_both(tmp_path)
    unrounded = reference(input_ids=IDS[None], use_cache=False).logits[0]
    for name, module in reference.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear) and f"model.layers.{name}" not in kept:
            module.forward = partial(product, module, by_span)  # type: ignore[method-assign]
    wanted = reference(input_ids=IDS[None], use_cache=False).logits[0]
    model = load_model(ModelConfig(model=str(tmp_path), dtype="float32"), torch.device("cpu"))
    error = model.logits(hidden_states(model, IDS, None)) - wanted
    assert error.norm() < 0.2 * (wanted - unrounded).norm()
