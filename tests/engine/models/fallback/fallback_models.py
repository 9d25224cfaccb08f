"""Tiny models of architectures that are served on transformers' own modules."""

from __future__ import annotations

import transformers as hf

from tests.engine.models.serving import GROUPED, SIZES, VOCAB

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
