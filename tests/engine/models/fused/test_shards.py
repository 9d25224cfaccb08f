"""Decoders in parts are the whole decoder, and those that cannot be divided are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from engine.config import ModelConfig
from engine.contracts.attention import KVCache
from engine.errors import ModelError
from engine.models import loader
from engine.models.loader import check_ranks, load_model
from sampling.noise import TILE
from sampling.shard import LoneRank, RankExchange
from tests.engine.models.serving import GROUPED, SIZES, PagedRows, expected, some_ids, write_tiny
from tests.sampling.ranks import on_ranks

CPU = torch.device("cpu")
VOCAB = 4 * TILE + 9
WIDE = {**GROUPED, "vocab_size": VOCAB}
EIGHT = {**SIZES, "vocab_size": 8 * TILE, "num_attention_heads": 8, "num_key_value_heads": 4}
MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**WIDE),
    "tied": LlamaConfig(**WIDE, tie_word_embeddings=True),
    "biases": LlamaConfig(**WIDE, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**WIDE),
    "qwen3": Qwen3Config(**WIDE, head_dim=16),
}
SIX_HEADS = {**WIDE, "hidden_size": 48, "num_attention_heads": 6}
PARTS = [(0, 0, 20), (1, 0, 7), (2, 0, 1)]


@torch.inference_mode()
def logits_of(folder: Path, exchange: RankExchange) -> torch.Tensor:
    """A rank's part of the logits of a few tokens, [28, width]."""
    model = load_model(ModelConfig(model=str(folder)), CPU, exchange)
    return torch.cat(PagedRows(model, 3).step(some_ids(), PARTS))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_parts_make_up_the_model(name: str, size: int, tmp_path: Path) -> None:
    """Of four key heads, four ranks hold one each; of two, two ranks share one."""
    reference = write_tiny(MODELS[name], tmp_path)
    parts = on_ranks(size, lambda exchange: logits_of(tmp_path, exchange))
    whole = torch.cat(parts, dim=1)
    assert whole.shape == (28, VOCAB)
    ids = some_ids()
    with torch.inference_mode():
        wanted = torch.cat([expected(reference, ids)[row, :last] for row, _, last in PARTS])
    torch.testing.assert_close(whole, wanted, rtol=0, atol=1e-4)


def test_eight_ranks_share_four_key_heads(tmp_path: Path) -> None:
    write_tiny(LlamaConfig(**EIGHT), tmp_path)
    whole = torch.cat(on_ranks(8, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    torch.testing.assert_close(whole, logits_of(tmp_path, LoneRank()), rtol=0, atol=1e-4)


def test_random_weights_are_those_of_one_rank(tmp_path: Path) -> None:
    LlamaConfig(**WIDE, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)

    @torch.inference_mode()
    def work(exchange: RankExchange) -> torch.Tensor:
        config = ModelConfig(model=str(tmp_path), load_format="dummy")
        model = load_model(config, CPU, exchange)
        return torch.cat(PagedRows(model, 3).step(some_ids(), PARTS))

    whole = torch.cat(on_ranks(2, work), dim=1)
    torch.testing.assert_close(whole, work(LoneRank()), rtol=0, atol=1e-4)


def test_a_rank_keeps_its_own_keys_only(tmp_path: Path) -> None:
    write_tiny(MODELS["llama"], tmp_path)

    def work(exchange: RankExchange) -> int:
        model = load_model(ModelConfig(model=str(tmp_path)), CPU, exchange)
        return KVCache.bytes_per_block(model.attention_specs, 16, model.dtype)

    alone = work(LoneRank())
    assert on_ranks(2, work) == [alone // 2] * 2
    assert on_ranks(4, work) == [alone // 2] * 4, "two ranks a key head"


@pytest.mark.parametrize(
    ("config", "size", "message"),
    [
        (LlamaConfig(**SIX_HEADS), 4, "6 attention heads do not divide"),
        (
            LlamaConfig(**{**SIX_HEADS, "num_key_value_heads": 3}),
            2,
            "3 key heads neither divide by it nor into it",
        ),
        (LlamaConfig(**{**WIDE, "intermediate_size": 50}), 4, "intermediate_size 50 does not"),
        (
            MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
            2,
            "mixtures of experts are not divided among ranks yet",
        ),
        (
            DeepseekV2Config(**WIDE, num_experts_per_tok=2, first_k_dense_replace=2),
            2,
            "compressed keys and values is not divided",
        ),
        (LlamaConfig(**GROUPED), 2, "vocabulary of 97 has 1 tiles of 1024, fewer than ranks"),
    ],
)
def test_what_does_not_divide_is_refused(
    config: PreTrainedConfig, size: int, message: str, tmp_path: Path
) -> None:
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"--tensor-parallel-size {size}: .*{message}"):
        check_ranks(ModelConfig(model=str(tmp_path)), size, torch.device("cpu"))


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    config = LlamaConfig(**WIDE, architectures=["LlamaForCausalLM"])
    config.quantization_config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"the quantized weights of .* are not divided among"):
        check_ranks(ModelConfig(model=str(tmp_path)), 2, torch.device("cpu"))


def test_layers_that_no_gpu_has_run_are_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU runs them on transformers' modules, which are not divided."""
    monkeypatch.setattr(loader, "UNTRIED_ON_CUDA", frozenset({"llama"}))
    LlamaConfig(**WIDE, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    config = ModelConfig(model=str(tmp_path))
    check_ranks(config, 2, torch.device("cpu"))
    with pytest.raises(ModelError, match="have not been run on a GPU yet; leave"):
        check_ranks(config, 2, torch.device("cuda"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_impl": "transformers"}, "--model-impl transformers was asked for; leave"),
        ({"quantization": "fp8"}, "--quantization fp8 is not divided among ranks yet"),
    ],
)
def test_what_is_not_divided_yet_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    LlamaConfig(**WIDE, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message):
        check_ranks(ModelConfig(model=str(tmp_path), **settings), 2, torch.device("cpu"))
