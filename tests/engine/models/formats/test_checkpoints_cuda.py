"""Quantised checkpoints on a GPU: as far from float32 as the same model in bfloat16 on the CPU.

The CPU's products are compared with other hands' in `test_int4_checkpoints` and
`test_fp8_checkpoints`. In bfloat16 both devices round the same numbers at the same places, and for
float8 inputs many more than sums do: errors of two such runs have one distribution. A position's
is allowed half as much again, in the median of 210: they vary by a third or so, a median of 210 by
some 3 %.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    CohereConfig,
    DeepseekV2Config,
    Gemma2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from engine.models.decoder import Decoder
from tests.engine.models.formats.gpt_oss import write_gpt_oss
from tests.engine.models.formats.kinds import EVEN, KINDS
from tests.engine.models.formats.packers import (
    write_quantized,
    write_quantized_experts,
)
from tests.engine.models.serving import load, serve, some_ids

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", KINDS)
def test_errs_as_bfloat16_does(kind: str, tmp_path: Path) -> None:
    config, module = KINDS[kind]
    write_quantized(tmp_path, config, module, EVEN)
    assert_errs_as_bfloat16_does(tmp_path)


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
LATENT = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
}
MODELS: dict[str, PreTrainedConfig] = {
    "qwen3-moe": Qwen3MoeConfig(**EVEN, **EXPERTS, num_key_value_heads=2, head_dim=32),
    "deepseek-v2": DeepseekV2Config(**EVEN, **LATENT),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_experts_err_as_bfloat16_does(name: str, kind: str, tmp_path: Path) -> None:
    config, module = KINDS[kind]
    config = {name: value for name, value in config.items() if name != "activation_scale_ub"}
    config |= {"modules_to_not_convert": ["gate"]}
    write_quantized_experts(tmp_path, MODELS[name], config, module)
    assert_errs_as_bfloat16_does(tmp_path)


GENERAL: dict[str, PreTrainedConfig] = {
    "cohere": CohereConfig(**EVEN, num_key_value_heads=2, logit_scale=0.7),
    "gemma2": Gemma2Config(**EVEN, num_key_value_heads=2, head_dim=32),
    "phi3": Phi3Config(**EVEN, num_key_value_heads=2),
}


@pytest.mark.parametrize("kind", ["awq", "gptq in order of activations", "fp8 by channel"])
@pytest.mark.parametrize("name", GENERAL)
def test_families_of_the_table_err_as_bfloat16_does(name: str, kind: str, tmp_path: Path) -> None:
    config, module = KINDS[kind]
    write_quantized(tmp_path, config, module, model=GENERAL[name])
    assert_errs_as_bfloat16_does(tmp_path)


def test_mxfp4_errs_as_bfloat16_does(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path)
    assert_errs_as_bfloat16_does(tmp_path)


def assert_errs_as_bfloat16_does(folder: Path) -> None:
    wanted = serve(load(folder, dtype="float32"), some_ids())
    model = load(folder, on="cuda", dtype="bfloat16")
    assert isinstance(model, Decoder)
    found = error(serve(model, some_ids(), on="cuda"), wanted)
    assert found < 1.5 * error(serve(load(folder, dtype="bfloat16"), some_ids()), wanted)


def error(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative error of the median position."""
    return float(((logits - wanted).norm(dim=-1) / wanted.norm(dim=-1)).median())
