"""Model folders with the shapes of real models and no weights, for random ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "attention_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "llama-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "llama-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "qwen2.5-3b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}
BIG = "qwen3-8b"
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
"""Shapes with experts, measured by `bench_experts`."""
TINY = "tiny"
TRIALS: dict[str, dict[str, Any]] = {
    TINY: {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,  # EAGLE-3 heads read three of them
        "num_attention_heads": 8,
        "head_dim": 16,
        "vocab_size": 30 * 1024,
        "tie_word_embeddings": False,
    },
}
"""Shapes that tell nothing: with them a benchmark is tried out on a CPU."""


LAYERS = int(os.environ.get("BENCHMARK_LAYERS", "0"))
"""If not 0, models have so many layers at most. Their kernels are those of whole models, and many
benchmarks make them ready side by side; figures say nothing."""


def few_layers(count: int) -> int:
    """A model's number of layers, or `LAYERS` of them."""
    return min(count, LAYERS or count)


def shape_config(name: str) -> dict[str, Any]:
    """The config of any shape."""
    config = QWEN3 | (SHAPES | EXPERTS | TRIALS)[name]
    return config | {"num_hidden_layers": few_layers(config["num_hidden_layers"])}


def write_shape(name: str, folder: Path) -> Path:
    """Write a folder with the config of a shape and a tokenizer of its vocabulary size."""
    config = shape_config(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, config["vocab_size"])
    return folder


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer of bytes that fills its vocabulary up with words no text holds."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"Ġ{index}" for index in range(len(tokens), vocab_size)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 40960,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def weight_bytes(name: str) -> int:
    """Bytes a decode step reads of a shape's bfloat16 weights: layers and head."""
    shape = QWEN3 | SHAPES[name]
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    q_width = shape["num_attention_heads"] * shape["head_dim"]
    kv_width = shape["num_key_value_heads"] * shape["head_dim"]
    layer = hidden * (2 * q_width + 2 * kv_width + 3 * inner)
    return int(2 * (shape["num_hidden_layers"] * layer + shape["vocab_size"] * hidden))


def cache_bytes_per_token(name: str) -> int:
    """Bytes a token's keys and values take."""
    shape = shape_config(name)
    per_layer = 2 * shape["num_key_value_heads"] * shape["head_dim"] * 2
    return int(shape["num_hidden_layers"] * per_layer)


def expert_step_bytes(name: str, rows: int) -> int:
    """Bytes a decode step reads of the bfloat16 weights of a shape with experts.

    Those of experts that none of the rows takes are not read: of E experts, k a row, drawn at
    random, E * (1 - (1 - k / E) ** rows) are.
    """
    shape = QWEN3 | EXPERTS[name]
    hidden, num_experts = shape["hidden_size"], shape["num_experts"]
    q_width = shape["num_attention_heads"] * shape["head_dim"]
    kv_width = shape["num_key_value_heads"] * shape["head_dim"]
    taken = num_experts * (1 - (1 - shape["num_experts_per_tok"] / num_experts) ** rows)
    layer = hidden * (2 * q_width + 2 * kv_width + num_experts)
    layer += 3 * hidden * shape["moe_intermediate_size"] * taken
    return int(2 * (shape["num_hidden_layers"] * layer + shape["vocab_size"] * hidden))
