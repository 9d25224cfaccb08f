"""The demo model's shape: built to train on whole windows, saved as transformers reads it."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from demo.tokens import END_OF_TEXT_ID, TURN_END_ID, VOCAB_SIZE

CONTEXT_TOKENS = 2048


def model_config() -> LlamaConfig:
    """The model's shape: 4.46M parameters, 8.9 MB in bfloat16, heads of 64, two a KV head."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
    )


def causal_attention(
    module: nn.Module,
    query: torch.Tensor,  # [batch, heads, tokens, head_dim]
    key: torch.Tensor,  # [batch, kv_heads, tokens, head_dim]
    value: torch.Tensor,  # [batch, kv_heads, tokens, head_dim]
    attention_mask: None,
    scaling: float | None = None,
    **unused: object,
) -> tuple[torch.Tensor, None]:
    """Full causal attention without a mask tensor, so that the flash kernel may serve it.

    Under torch.compile transformers' own "sdpa" builds a mask, which rules that kernel out.
    """
    output = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


def add_dropout(model: LlamaForCausalLM, rate: float) -> None:
    """Drop elements of everything that is added to the residual stream, while training."""

    def drop(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return dropout(output, rate, module.training)

    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.down_proj.register_forward_hook(drop)


def build_model(device: torch.device, seed: int, dropout_rate: float) -> LlamaForCausalLM:
    """A fresh float32 model that takes unpadded windows without a cache."""
    AttentionInterface.register("causal", causal_attention)
    AttentionMaskInterface.register("causal", lambda *args, **kwargs: None)
    torch.manual_seed(seed)
    config = model_config()
    config._attn_implementation = "causal"
    model = LlamaForCausalLM(config).to(device)
    add_dropout(model, dropout_rate)
    return model


def load_model(folder: Path) -> tuple[LlamaForCausalLM, Tokenizer]:
    """A saved model in float32, on a GPU where there is one, and its tokenizer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write bfloat16 weights, config.json and a generation_config.json of ids, for all to read."""
    model.generation_config = GenerationConfig(
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=[END_OF_TEXT_ID, TURN_END_ID],
        pad_token_id=END_OF_TEXT_ID,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
