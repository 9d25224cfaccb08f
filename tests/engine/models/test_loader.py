from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
)

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.decoder import Decoder
from engine.models.expected import eos_token_ids, resolve_dtype
from engine.models.fallback.model import FallbackModel
from engine.models.refusals import _warn_if_untested, fp8_lack
from tests.engine.models.serving import GROUPED, SIZES, VOCAB, load, write_tiny
from tests.engine.models.small_models import MODELS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(LlamaConfig(**GROUPED), tmp_path)
    return tmp_path


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_what_a_model_says_of_itself(folder: Path) -> None:
    model = load(folder)
    assert model.vocab_size == VOCAB
    assert model.max_position == 128
    assert model.dtype == torch.float32
    assert len(model.attention_specs) == 2
    assert eos_token_ids(ModelConfig(model=str(folder))) == (1,)


@pytest.mark.parametrize(
    ("impl", "kind"), [("auto", Decoder), ("fused", Decoder), ("transformers", FallbackModel)]
)
def test_model_impl(impl: str, kind: type, folder: Path) -> None:
    assert isinstance(load(folder, model_impl=impl), kind)


def test_fused_by_name_says_why_not(tmp_path: Path) -> None:
    write_tiny(GPTNeoXConfig(**SIZES), tmp_path)
    with pytest.raises(ModelError, match=r"fused decoder does not run .*GPTNeoXForCausalLM"):
        load(tmp_path, model_impl="fused")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            "partial_rotary_factor 0.5",
        ),
    ],
)
def test_what_the_fused_decoder_does_not_know(
    fields: dict[str, Any], reason: str, folder: Path
) -> None:
    change_config(folder, **fields)
    with pytest.raises(ModelError, match=reason):
        load(folder, model_impl="fused")


def test_a_bound_that_experts_weights_may_reach_is_not_known(tmp_path: Path) -> None:
    write_tiny(MODELS["ernie-moe"], tmp_path)
    assert isinstance(load(tmp_path), Decoder)
    change_config(tmp_path, moe_norm_min=0.9)
    with pytest.raises(ModelError, match=r"moe_norm_min 0\.9"):
        load(tmp_path, model_impl="fused")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("checkpoint", [torch.float16, None])
def test_dtype(checkpoint: torch.dtype | None, device: str) -> None:
    hf_config = LlamaConfig(**GROUPED, dtype=checkpoint)
    for name in ("float32", "bfloat16", "float16"):
        config = ModelConfig(model="", dtype=name)
        assert resolve_dtype(config, hf_config, torch.device(device)) == getattr(torch, name)
    auto = resolve_dtype(ModelConfig(model=""), hf_config, torch.device(device))
    assert auto == (torch.float32 if device == "cpu" else checkpoint or torch.bfloat16)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq' is not read"),
        ({"num_attention_heads": "four"}, "config.json: "),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification is not supported: not a causal language model",
        ),
        ({"num_attention_heads": 5}, r"config.json: .* \(32\) is not a multiple of .* \(5\)"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide the 4 of num_attent"),
        ({"num_key_value_heads": 0}, "config.json: num_key_value_heads must be at least 1, got 0"),
        ({"num_hidden_layers": -1}, "config.json: num_hidden_layers must be at least 1, got -1"),
        ({"vocab_size": 0}, "config.json: vocab_size must be at least 1, got 0; give a config"),
        ({"hidden_act": "silly"}, "KeyError: 'silly'; give the config.json that the checkpoint"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [1.0]}},
            "config.json: .*short_factor.*; correct it",
        ),
    ],
)
def test_configs_that_cannot_be_served(fields: dict[str, Any], message: str, folder: Path) -> None:
    change_config(folder, **fields)
    with pytest.raises(ModelError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sliding_window": 0}, "config.json: sliding_window must be at least 1, got 0"),
        ({"hidden_act": "silly"}, "config.json: transformers makes no mistral of it: KeyError: "),
    ],
)
def test_configs_alone_that_cannot_be_served(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    MistralConfig(**GROUPED, architectures=["MistralForCausalLM"]).save_pretrained(tmp_path)
    change_config(tmp_path, **fields)
    with pytest.raises(ModelError, match=message) as error:
        load(tmp_path, load_format="dummy")
    assert "\n" not in str(error.value)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("capability", "lacks"), [((8, 6), True), ((8, 9), False), ((9, 0), False)]
)
def test_a_gpu_without_float8_says_so(
    capability: tuple[int, int], lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    words = "needs a GPU of compute capability 8.9 or more, and Some GPU has 8.6"
    assert fp8_lack(torch.device("cuda")) == (words if lacks else None)
    assert fp8_lack(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("model", "warns"),
    [
        (LlamaConfig(**GROUPED), False),
        (Gemma2Config(**GROUPED), True),
        (DeepseekV2Config(**SIZES, num_experts_per_tok=3), False),
    ],
)
def test_quantised_layers_that_no_test_ran_on_a_gpu_are_warned_of(
    model: PreTrainedConfig, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_if_untested("this", model.model_type, torch.device("cpu"))
    assert not caplog.records
    _warn_if_untested("this", model.model_type, torch.device("cuda"))
    assert len(caplog.records) == warns
