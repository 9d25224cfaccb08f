"""The statement of error is what two whole models, run one beside the other, differ by."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, Phi3Config, PreTrainedConfig

from engine.config import CacheConfig, CacheDtype, EngineConfig, ModelConfig, StructuredConfig
from engine.contracts.info import ErrorStatement
from engine.kernels.fp8 import Fp8Rows, quantize_rows
from engine.models.formats import fp8
from engine.startup.build import build_engine
from engine.startup.error_text import NAME, NUM_TOKENS
from tests.engine.models.formats.expert_models import MODELS as EXPERT_MODELS
from tests.engine.models.formats.packers import (
    WIDE,
    Tensors,
    gptq,
    round_weight,
    write_quantized,
    write_quantized_experts,
)
from tests.engine.models.serving import LENGTH, VOCAB, PagedRows, expected, load, write_tiny
from tests.engine.models.small_models import MODELS, fp8_product

DEMO = Path(__file__).resolve().parents[3] / "demo" / "model"
GPT2 = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)
IDS = torch.arange(LENGTH)[None] * 7919 % VOCAB
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
BY_TOKEN = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def stated(folder: Path, kv: CacheDtype = "auto", **model: Any) -> ErrorStatement:
    statement = built(folder, kv, **model)
    assert statement is not None
    return statement


def figures(statement: ErrorStatement) -> tuple[float, float]:
    """Mean KL and the largest gap, which are numbers."""
    assert statement.mean_kl is not None
    assert statement.max_logprob_gap is not None
    return statement.mean_kl, statement.max_logprob_gap


def built(folder: Path, kv: CacheDtype = "auto", **model: Any) -> ErrorStatement | None:
    config = ModelConfig(model=str(folder), max_model_len=LENGTH, device="cpu", **model)
    cache = CacheConfig(num_blocks=40, dtype=kv)
    return build_engine(EngineConfig(model=config, cache=cache)).info.quantization


def assert_equals(statement: ErrorStatement, reference: torch.Tensor, served: torch.Tensor) -> None:
    """Compare with logits [LENGTH, VOCAB] of two models, in float64 and by numpy alone.

    Both are float32's, 1e-4 from the statement's own at most: a KL's terms move by p times that.
    """
    logs = []
    for logits in (reference, served):
        wide = logits.double().numpy()
        logs.append(wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True))
    kl = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1)
    mean_kl, gap = figures(statement)
    assert mean_kl == pytest.approx(kl.mean(), abs=2e-5)
    assert gap == pytest.approx(np.abs(logs[0] - logs[1]).max(), abs=2e-4)
    assert statement.text == f"arbitrary tokens, {LENGTH} tokens"


@torch.inference_mode()
def whole(folder: Path, **model: Any) -> torch.Tensor:
    """Logits [LENGTH, VOCAB] of a model as it is served."""
    return PagedRows(load(folder, dtype="float32", **model), 1).step(IDS, [(0, 0, LENGTH)])[0]


@pytest.mark.parametrize(
    "name", ["llama-biases", "qwen2", "qwen3", "gemma2", "phi3-partial", "cohere-biases"]
)
def test_fp8_made_at_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models are transformers', one of them with every product rounded in float64."""
    model = write_tiny(MODELS[name], tmp_path)
    reference = expected(model, IDS)[0]
    for module in model.model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            monkeypatch.setattr(module, "forward", partial(fp8_product, module))
    statement = stated(tmp_path, quantization="fp8")
    assert_equals(statement, reference, expected(model, IDS)[0])
    assert figures(statement)[0] > 1e-3, "the scheme does round"
    assert (statement.scheme, statement.reference) == ("fp8", "unquantized weights in float32")


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_experts_in_fp8(name: str, tmp_path: Path) -> None:
    """Experts are read twice too, whatever a layer's products are."""
    model = write_tiny(MODELS[name], tmp_path)
    statement = stated(tmp_path, quantization="fp8")
    assert_equals(statement, expected(model, IDS)[0], whole(tmp_path, quantization="fp8"))
    assert figures(statement)[0] > 1e-4


@pytest.mark.parametrize("model", [None, Phi3Config(**WIDE, sliding_window=11)])
def test_a_float8_checkpoint(model: PreTrainedConfig | None, tmp_path: Path) -> None:
    """The reference is transformers' model of the dequantised weights."""

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = weight.abs().amax() / 448
        values = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale": scale}, values.float() * scale

    reference = write_quantized(tmp_path, BY_TOKEN, module, model=model)
    statement = stated(tmp_path)
    assert_equals(statement, expected(reference, IDS)[0], whole(tmp_path))
    assert figures(statement)[0] > 1e-3, "inputs are rounded"
    assert statement.reference == "dequantized weights in float32"


def test_a_checkpoint_of_weights_alone_is_its_own_reference(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, 32, symmetric=True)
        return gptq(rounded), rounded.values()

    reference = write_quantized(tmp_path, GPTQ, module)
    statement = stated(tmp_path)
    assert_equals(statement, expected(reference, IDS)[0], whole(tmp_path))
    assert figures(statement)[0] < 1e-8
    assert statement.scheme.startswith("gptq")


def test_experts_of_four_bits(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rounded = round_weight(weight, -1, symmetric=True)
        return gptq(rounded), rounded.values()

    config = GPTQ | {"group_size": -1}
    reference = write_quantized_experts(tmp_path, EXPERT_MODELS["qwen2-moe"], config, module)
    statement = stated(tmp_path)
    assert_equals(statement, expected(reference, IDS)[0], whole(tmp_path))
    assert figures(statement)[0] < 1e-8


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt2"])
def test_keys_and_values_in_fp8(name: str, tmp_path: Path) -> None:
    """A cache in float8 is felt on fused layers of both kinds, and on transformers' modules."""
    write_tiny(MODELS.get(name) or GPT2, tmp_path)
    statement = stated(tmp_path, "fp8")
    mean_kl, gap = figures(statement)
    assert 1e-6 < mean_kl < gap < 1.0
    assert statement.scheme == "keys and values in fp8"
    assert statement.reference == "keys and values in float32"


def test_weights_and_keys_together_err_more(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    weights = stated(tmp_path, quantization="fp8")
    both = stated(tmp_path, "fp8", quantization="fp8")
    assert both.scheme == "fp8, keys and values in fp8"
    assert both.reference == weights.reference
    assert figures(both)[0] > figures(weights)[0]


def test_a_scale_of_the_next_channel_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the served product alone: every channel has the scale of its neighbour."""
    write_tiny(MODELS["qwen3"], tmp_path)
    right = stated(tmp_path, quantization="fp8")

    def off_by_one(weight: torch.Tensor) -> Fp8Rows:
        rows = quantize_rows(weight)
        return rows._replace(scales=rows.scales.roll(1))

    monkeypatch.setattr(fp8, "quantize_rows", off_by_one)
    wrong = stated(tmp_path, quantization="fp8")
    assert figures(wrong)[0] > 20 * figures(right)[0]


def test_what_is_not_quantized_states_nothing(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    assert built(tmp_path) is None


def test_dummy_weights_are_named_as_such(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    statement = stated(tmp_path, load_format="dummy", quantization="fp8")
    assert statement.reference == "random unquantized weights in float32"
    assert 0 < figures(statement)[0] < 0.1, "both models have the same random weights"


def test_nan_in_weights_is_no_number_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        statement = stated(tmp_path, quantization="fp8")
    assert statement.mean_kl is None
    assert statement.max_logprob_gap is None
    assert "are no numbers" in caplog.text


def test_the_text_is_encoded_by_the_models_tokenizer() -> None:
    """512 tokens of the text by the demo model's tokenizer."""
    config = EngineConfig(
        model=ModelConfig(model=str(DEMO), device="cpu", quantization="fp8"),
        cache=CacheConfig(num_blocks=200),
        structured=StructuredConfig(tokenizer=str(DEMO)),
    )
    statement = build_engine(config).info.quantization
    assert statement is not None
    assert statement.text == f"{NAME}, {NUM_TOKENS} tokens"
    assert 1e-4 < figures(statement)[0] < 0.05
