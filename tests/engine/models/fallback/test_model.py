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

GPT_SIZES = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
UNGROUPED_GPT = {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 2, "n_head": 6}
EVERY_OTHER = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS = {
    "bloom": hf.BloomConfig(**UNGROUPED_GPT),  # ALiBi, heads no power of two
    "codegen": hf.CodeGenConfig(**GPT_SIZES, rotary_dim=4),
    "cohere": hf.CohereConfig(**GROUPED, logit_scale=0.7),  # parallel block, logit scale
    "cohere2": hf.Cohere2Config(**GROUPED, **EVERY_OTHER, logit_scale=1.0),
    "deepseek_v3": hf.DeepseekV3Config(  # latent attention: values narrower than keys
        **SIZES,
        num_key_value_heads=4,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=1,
        **EXPERTS,
    ),
    "falcon": hf.FalconConfig(  # one key head, parallel block
        **{k: v for k, v in SIZES.items() if k != "intermediate_size"}
    ),
    "falcon-new": hf.FalconConfig(
        **{k: v for k, v in SIZES.items() if k != "intermediate_size"},
        new_decoder_architecture=True,
        num_kv_heads=2,
    ),
    "gemma2": hf.Gemma2Config(  # soft caps of scores and logits, sliding windows
        **GROUPED,
        **EVERY_OTHER,
        head_dim=8,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3-images": hf.Gemma3Config(  # asked with text alone
        text_config={**GROUPED, **EVERY_OTHER, "head_dim": 8, "query_pre_attn_scalar": 10},
        vision_config={"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        image_token_id=VOCAB,
    ),
    "gemma3": hf.Gemma3TextConfig(  # rotations by layer type
        **GROUPED, **EVERY_OTHER, head_dim=8, query_pre_attn_scalar=8
    ),
    "gpt2": hf.GPT2Config(**GPT_SIZES, scale_attn_by_inverse_layer_idx=True),  # learned positions
    "gpt_bigcode": hf.GPTBigCodeConfig(**GPT_SIZES),
    "gpt_neo": hf.GPTNeoConfig(
        **{k: v for k, v in SIZES.items() if k not in ("num_hidden_layers", "num_attention_heads")},
        num_layers=2,
        num_heads=4,
        window_size=11,
        attention_types=[[["global", "local"], 1]],
    ),
    "gpt_neox": hf.GPTNeoXConfig(**SIZES),  # parallel block, partial rotation
    "gpt_oss": hf.GptOssConfig(  # sinks, mixture of experts
        **GROUPED, **EVERY_OTHER, head_dim=8, num_local_experts=4, num_experts_per_tok=2
    ),
    "gptj": hf.GPTJConfig(**GPT_SIZES, rotary_dim=4),
    "mixtral": hf.MixtralConfig(**GROUPED, num_local_experts=4, sliding_window=11),
    "mpt": hf.MptConfig(  # ALiBi by a tensor of its own
        d_model=48, n_heads=6, n_layers=2, vocab_size=VOCAB, max_seq_len=128, expansion_ratio=2
    ),
    "olmoe": hf.OlmoeConfig(**GROUPED, num_experts=4, num_experts_per_tok=2),
    "opt": hf.OPTConfig(  # learned positions with an offset, projections around the decoder
        **{k: v for k, v in SIZES.items() if k != "intermediate_size"},
        ffn_dim=48,
        word_embed_proj_dim=24,
    ),
    "phi": hf.PhiConfig(**SIZES),  # head with a bias
    "phi3": hf.Phi3Config(**SIZES, sliding_window=11),  # fused projections
    "qwen2_moe": hf.Qwen2MoeConfig(
        **GROUPED, num_experts=4, shared_expert_intermediate_size=16, **EXPERTS
    ),
    "llama-partial-rotation": hf.StableLmConfig(**GROUPED),
}
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
