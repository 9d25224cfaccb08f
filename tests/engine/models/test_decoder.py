"""The fused decoder against transformers: same logits, however rows are cut into steps."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.models.reference import Reference
from engine.startup.error_statement import hidden_states
from tests.engine.models.serving import (
    LATENT,
    SIZES,
    assert_same_logits,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)
from tests.engine.models.small_models import (
    MODELS,
    fp8_product,
)


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path)
    model = load(tmp_path, model_impl="fused", max_model_len=128)
    assert isinstance(model, Decoder)
    assert_same_logits(model, reference)


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "gemma2", "phi3"])
def test_sharded_files(name: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_same_logits(load(tmp_path), reference)


def test_a_window_off_by_one_is_noticed(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["mistral-window"], tmp_path)
    model, ids = load(tmp_path), some_ids()
    model.attention_specs = [replace(s, sliding_window=12) for s in model.attention_specs]
    assert (serve(model, ids) - expected(reference, ids)).abs().max() > 1e-2


def test_the_fallback_agrees(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["qwen3-window"], tmp_path)
    model = load(tmp_path, model_impl="transformers")
    assert not isinstance(model, Decoder)
    assert_same_logits(model, reference)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "cohere", "olmo2", "phi"])
def test_narrow_types_stay_near(name: str, dtype: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path)
    ids = some_ids()
    logits, wanted = serve(load(tmp_path, dtype=dtype), ids), expected(reference, ids)
    assert logits.dtype == torch.float32
    # Some thirty roundings of independent sign on the way to a logit.
    error = (logits - wanted).norm() / wanted.norm()
    assert error < 30**0.5 * torch.finfo(getattr(torch, dtype)).eps


ROUNDED = ["llama", "qwen2", "qwen3", "deepseek-dense"]
ROUNDED_GENERAL = [
    "gemma2",
    "gemma3",
    "phi3-partial",
    "cohere-biases",
    "glm4",
    "starcoder2",
    "olmo2",
]


@pytest.mark.parametrize("name", [*ROUNDED, *ROUNDED_GENERAL])
def test_fp8_logits_are_those_of_the_scheme(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers' own model with each product of its layers in float64 over quantized rows.

    An input within float32's error of the middle of two float8 numbers may round the other way,
    which moves logits by far more than the bound. There are about 60,000 inputs and the share of
    such is some 2^-20: none is expected with these weights, and none is met.
    """
    reference = write_tiny(MODELS[name], tmp_path)
    ids = some_ids()
    unquantized = expected(reference, ids)
    for layer in reference.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                monkeypatch.setattr(module, "forward", partial(fp8_product, module))
    wanted = expected(reference, ids)
    logits = serve(load(tmp_path, quantization="fp8"), ids)
    assert (logits - wanted).abs().max() < 1e-4
    assert (wanted - unquantized).abs().max() > 1e-2, "the scheme does round"


def test_quantization_needs_the_fused_decoder(tmp_path: Path) -> None:
    write_tiny(MODELS["llama"], tmp_path)
    with pytest.raises(ModelError, match="--quantization fp8: only the fused decoder quantizes"):
        load(tmp_path, quantization="fp8", model_impl="transformers")


def test_positions_a_step_past_the_context_can_be_asked_for(tmp_path: Path) -> None:
    write_tiny(MODELS["llama"], tmp_path)
    model = load(tmp_path, max_model_len=LENGTH_SERVED)
    assert serve(model, some_ids()).isfinite().all()
    assert model.max_position == SIZES["max_position_embeddings"]


LENGTH_SERVED = 69
"""One token less than `serve` asks for."""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts_per_tok": 9}, r"num_experts_per_tok must be from 1 to .* \(7\), got 9"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be at least 1, got 0"),
        (
            {"num_local_experts": 8},
            r"mlp.gate.weight' has shape \[7, 32\], the config asks for \[8, 32\]",
        ),
        (
            {"num_local_experts": 6},
            r"mlp.gate.weight' has shape \[7, 32\], the config asks for \[6, 32\]",
        ),
        (
            {"moe_intermediate_size": 8},
            r"down_proj.weight' has shape \[32, 16\], the config asks for \[32, 8\]",
        ),
    ],
)
def test_experts_that_do_not_fit(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3-moe"], tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text()) | fields
    if "num_experts" in content:  # the name that older versions write
        content["num_experts"] = content.pop("num_local_experts", content["num_experts"])
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_the_same_step_of_experts_gives_the_same_bits(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen2-moe"], tmp_path)
    model, ids = load(tmp_path), some_ids()
    assert torch.equal(serve(model, ids), serve(model, ids))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"attention_bias": True}, "attention_bias true"),
        ({"v_head_dim": 24}, "v_head_dim 24 above the 20 of keys"),
        ({"topk_method": "noaux_tc"}, "topk_method 'noaux_tc'"),
    ],
)
def test_compressed_attention_that_is_not_run(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    hf.DeepseekV2Config(
        **SIZES, **LATENT | fields, architectures=["DeepseekV2ForCausalLM"]
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load(tmp_path, model_impl="fused", load_format="dummy")


def test_groups_without_enough_experts_are_refused(tmp_path: Path) -> None:
    write_tiny(MODELS["deepseek-v2"], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"topk_group": 1}))
    with pytest.raises(ModelError, match=r"1 \(topk_group\) of 3 groups .* do not hold the 3"):
        load(tmp_path)


def test_layers_that_draft_further_tokens_are_left_out(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["deepseek-v3"], tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"model.layers.2.enorm.weight": torch.ones(32)}, path)
    assert_same_logits(load(tmp_path), reference)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_nextn_predict_layers": 0}))
    with pytest.raises(ModelError, match=r"enorm.weight' has no place in this architecture"):
        load(tmp_path)


def test_longrope_beyond_its_original_length_is_refused(tmp_path: Path) -> None:
    write_tiny(MODELS["phi3-longrope"], tmp_path)
    with pytest.raises(ModelError, match="set --max-model-len to 128 or less"):
        load(tmp_path)
    assert load(tmp_path, max_model_len=100).max_position == 128


@pytest.mark.parametrize("name", ["gemma3", "glm4", "phi3-partial", "cohere2", "deepseek-v2"])
def test_another_rotation_is_noticed(name: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path)
    model, ids = load(tmp_path), some_ids()
    assert isinstance(model, Decoder)
    model._rope_tables = [table.roll(1, 0) for table in model._rope_tables]
    model._rope_tables[0] = model._rope_tables[0].roll(7, 1)
    assert (serve(model, ids) - expected(reference, ids)).abs().max() > 1e-2


@pytest.mark.skipif("gemma4-shared" not in MODELS, reason="transformers has no Gemma 4")
def test_layers_run_one_by_one_as_together(tmp_path: Path) -> None:
    """Those that read another layer's keys too; so the error of quantization is measured."""
    write_tiny(MODELS["gemma4-shared"], tmp_path)
    ids, cpu = some_ids()[0], torch.device("cpu")
    reference = Reference(lambda _: ids)
    rounded = ModelConfig(model=str(tmp_path), dtype="float32", quantization="fp8")
    load_model(rounded, cpu, reference=reference)
    assert reference.hidden is not None
    wanted = hidden_states(load(tmp_path), ids, None)
    torch.testing.assert_close(reference.hidden, wanted, rtol=0, atol=1e-5)
