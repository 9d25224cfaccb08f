"""Architectures served on transformers' own modules: same logits as transformers; or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

from engine.errors import ModelError
from engine.models.fallback.model import FallbackModel
from tests.engine.models.fallback.fallback_models import MODELS
from tests.engine.models.serving import (
    GROUPED,
    SIZES,
    VOCAB,
    assert_same_logits,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)

REFUSED: dict[str, tuple[hf.PreTrainedConfig, str]] = {
    "t5": (
        hf.T5Config(d_model=32, num_layers=1, num_heads=4, vocab_size=VOCAB, d_kv=8, d_ff=48),
        "encoder-decoder",
    ),
    "mamba": (
        hf.MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=VOCAB),
        "layers of type 'linear_attention'|recurrent|no attention",
    ),
    "minimax": (
        hf.MiniMaxConfig(**GROUPED, head_dim=8, layer_types=["linear_attention"] * 2),
        "layers of type 'linear_attention'",
    ),
    "bert": (hf.BertConfig(**SIZES, is_decoder=False), "not causal"),
    "rwkv": (
        hf.RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB),
        "no attention",
    ),
    "diffllama": (hf.DiffLlamaConfig(**GROUPED), "shared weights"),
    "doge": (hf.DogeConfig(**GROUPED), "masks of the model's own"),
    "falcon-alibi": (
        hf.FalconConfig(**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, alibi=True),
        "bfloat16 ALiBi",
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # some architectures' own
@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    reference = write_tiny(MODELS[name], tmp_path)
    model = load(tmp_path, model_impl="transformers")
    assert isinstance(model, FallbackModel)
    assert_same_logits(model, reference)


def test_a_window_off_by_one_is_noticed(tmp_path: Path) -> None:
    reference = write_tiny(MODELS["gemma3"], tmp_path)
    model, ids = load(tmp_path, model_impl="transformers"), some_ids()
    windows = [spec.sliding_window for spec in model.attention_specs]
    assert windows == [11, None]
    model.attention_specs = [replace(s, sliding_window=12) for s in model.attention_specs]
    assert (serve(model, ids) - expected(reference, ids)).abs().max() > 1e-2


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    config, feature = REFUSED[name]
    architecture = hf.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(
        config.model_type, "T5ForConditionalGeneration"
    )
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=feature) as error:
        load(tmp_path, load_format="dummy")
    assert str(error.value).startswith(f"{architecture} is not supported: ")
    assert "\n" not in str(error.value)


def test_state_between_tokens_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(hf.PhiConfig(**SIZES), tmp_path)
    mlp = hf.models.phi.modeling_phi.PhiMLP
    forward = mlp.forward

    def shifted(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Mixes in the token before, as a convolution or a token shift would."""
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        out: torch.Tensor = forward(self, x + 0.1 * before)
        return out

    monkeypatch.setattr(mlp, "forward", shifted)
    with pytest.raises(ModelError, match="keeps state between tokens"):
        load(tmp_path, model_impl="transformers")


@pytest.mark.parametrize("max_model_len", [None, 33])
def test_longrope_is_refused_beyond_its_original_length(
    max_model_len: int | None, tmp_path: Path
) -> None:
    write_tiny(hf.Phi3Config(**SIZES, **LONGROPE), tmp_path)
    with pytest.raises(ModelError, match=r"longrope beyond 32 positions .* --max-model-len"):
        load(tmp_path, max_model_len=max_model_len)


LONGROPE = {
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [4.0, 5.0, 6.0, 7.0],
        "original_max_position_embeddings": 32,
    },
}


def test_longrope_within_its_original_length(tmp_path: Path) -> None:
    reference = write_tiny(hf.Phi3Config(**SIZES, **LONGROPE), tmp_path)
    model, ids = load(tmp_path, max_model_len=32), some_ids()
    assert model.max_position == 32
    # Rows past the limit do not turn the others' angles.
    wanted = torch.cat([reference(input_ids=ids[:, :n]).logits[:, n - 1 :] for n in (1, 7, 32)], 1)
    torch.testing.assert_close(serve(model, ids)[:, [0, 6, 31]], wanted, rtol=0, atol=1e-4)


def test_dummy_weights_are_the_same_each_time(tmp_path: Path) -> None:
    config = MODELS["gpt2"]
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    first, second = (serve(load(tmp_path, load_format="dummy"), some_ids()) for _ in range(2))
    assert torch.equal(first, second)
    assert first.std() > 0
