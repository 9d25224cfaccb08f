"""gpt-oss with experts in mxfp4: logits are transformers' on the weights that it dequantises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.errors import ModelError
from engine.models.decoder import Decoder
from tests.engine.models.formats.packers import Tensors, rewrite
from tests.engine.models.serving import (
    SIZES,
    assert_same_logits,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)

CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
MODEL = hf.GptOssConfig(
    **{**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2},
    head_dim=16,
    num_local_experts=5,
    num_experts_per_tok=2,
    layer_types=["sliding_attention", "full_attention"],
    sliding_window=11,
    rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
)


def random_mxfp4(num_experts: int, channels: int, width: int) -> Tensors:
    """Blocks and scales; values are near 0.2, as the other weights are."""
    shape = (num_experts, channels, width // 32)
    return {
        "_blocks": torch.randint(0, 256, (*shape, 16), dtype=torch.uint8),
        "_scales": torch.randint(122, 125, shape, dtype=torch.uint8),
    }


def write_gpt_oss(folder: Path, config: hf.PreTrainedConfig = MODEL) -> Any:
    """Write the checkpoint; returns transformers' model with the dequantised experts."""
    reference = write_tiny(config, folder)
    tensors = load_file(folder / "model.safetensors")
    for index, layer in enumerate(reference.model.layers):
        for part in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{index}.mlp.experts.{part}"
            num_experts, width, channels = tensors.pop(name).shape
            stored = random_mxfp4(num_experts, channels, width)
            tensors |= {f"{name}{key}": tensor for key, tensor in stored.items()}
            wide = convert_moe_packed_tensors(
                stored["_blocks"], stored["_scales"], dtype=torch.float32
            )
            getattr(layer.mlp.experts, part).data.copy_(wide)
    rewrite(folder, tensors, CONFIG)
    return reference


def test_logits(tmp_path: Path) -> None:
    reference = write_gpt_oss(tmp_path)
    assert isinstance(load(tmp_path), Decoder)
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("name", ["_blocks", "_scales"])
def test_another_byte_is_noticed(name: str, tmp_path: Path) -> None:
    reference = write_gpt_oss(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    own = tensors[f"model.layers.0.mlp.experts.gate_up_proj{name}"]
    own[..., 0] = own[..., 0] ^ 8 if name == "_blocks" else own[..., 0] + 2
    rewrite(tmp_path, tensors, None)
    ids = some_ids()
    assert (serve(load(tmp_path), ids) - expected(reference, ids)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("_blocks", lambda t: t[:, 1:], r"the config asks for \[5, 192, 2, 16\]"),
        ("_scales", lambda t: t.to(torch.int32), "is stored as I32, mxfp4 asks for U8"),
        ("_scales", lambda t: torch.full_like(t, 255), "holds scales that are no numbers"),
        ("_scales", None, "has no tensor 'model.layers.0.mlp.experts.gate_up_proj_scales'"),
    ],
)
def test_refused(name: str, change: Any, message: str, tmp_path: Path) -> None:
    write_gpt_oss(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    full = f"model.layers.0.mlp.experts.gate_up_proj{name}"
    tensor = tensors.pop(full)
    if change is not None:
        tensors[full] = change(tensor).contiguous()
    rewrite(tmp_path, tensors, None)
    with pytest.raises(ModelError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_another_limit_of_gates_is_refused(tmp_path: Path) -> None:
    config = hf.GptOssConfig(**MODEL.to_dict() | {"swiglu_limit": 5.0})
    write_tiny(config, tmp_path)
    with pytest.raises(ModelError, match=r"swiglu_limit 5.0 is not served, 7.0 is"):
        load(tmp_path)
