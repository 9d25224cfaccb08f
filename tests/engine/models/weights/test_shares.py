"""What each rank has of a decoder, and decoders that cannot be divided are refused by name."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.families.table import decoder_spec
from engine.models.refusals import check_ranks
from engine.models.weights.shares import COLUMNS, HEADS, KEYS, Division, RankShares, check_shards
from tests.engine.models.families.shard_models import DIVIDED_LATENT, EXPERTS, WIDE, write_config
from tests.engine.models.serving import GROUPED

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
SIX_HEADS = {**WIDE, "hidden_size": 48, "num_attention_heads": 6}


def quantize(folder: Path, quantization: dict[str, Any]) -> None:
    """Say in a folder's config.json that its weights are quantised."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | {"quantization_config": quantization}
    path.write_text(json.dumps(content))


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
            Qwen3MoeConfig(**{**WIDE, **EXPERTS, "moe_intermediate_size": 25}),
            2,
            "experts' inner size 25 does not divide",
        ),
        (
            GptOssConfig(**WIDE | {"intermediate_size": 42}, num_local_experts=4),
            4,
            "the experts' inner size 42 does not divide",
        ),
        (
            Qwen2MoeConfig(**WIDE, **EXPERTS, shared_expert_intermediate_size=41),
            2,
            "the shared expert's inner size 41 does not divide",
        ),
        (
            Gemma3TextConfig(**SIX_HEADS | {"num_key_value_heads": 3}),
            2,
            "3 key heads neither divide by it nor into it",
        ),
        (Phi3Config(**WIDE | {"intermediate_size": 50}), 4, "intermediate_size 50 does not"),
        (
            DeepseekV2Config(**SIX_HEADS | DIVIDED_LATENT | {"num_key_value_heads": 6}),
            4,
            "6 attention heads do not divide",
        ),
        (LlamaConfig(**GROUPED), 2, "vocabulary of 97 has 1 tiles of 1024, fewer than ranks"),
    ],
)
def test_what_does_not_divide_is_refused(
    config: PreTrainedConfig, size: int, message: str, tmp_path: Path
) -> None:
    write_config(config, tmp_path)
    with pytest.raises(ModelError, match=f"--tensor-parallel-size {size}: .*{message}"):
        check_ranks(ModelConfig(model=str(tmp_path)), size)


def test_transformers_modules_are_refused(tmp_path: Path) -> None:
    write_config(LlamaConfig(**WIDE), tmp_path)
    config = ModelConfig(model=str(tmp_path), model_impl="transformers")
    with pytest.raises(ModelError, match="--model-impl transformers was asked for; leave"):
        check_ranks(config, 2)


@pytest.mark.parametrize(
    ("config", "quantization", "size", "message"),
    [
        (
            GptOssConfig(**WIDE | {"intermediate_size": 96}, num_local_experts=4),
            {"quant_method": "mxfp4"},
            4,
            "the experts' inner size 96 is 3 groups of 32 inputs",
        ),
        (
            LlamaConfig(**WIDE | {"intermediate_size": 384}),
            GPTQ | {"group_size": 128},
            4,
            "intermediate_size 384 is 3 groups of 128 inputs .*, fewer than ranks; give the",
        ),
        (
            LlamaConfig(**WIDE | {"intermediate_size": 130}),
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            4,
            "intermediate_size 130 is 2 groups of 128 inputs",
        ),
        (
            LlamaConfig(**WIDE | {"intermediate_size": 130}),
            {"quant_method": "fp8"},
            4,
            "intermediate_size 130 does not divide",
        ),
    ],
)
def test_fewer_groups_than_ranks_are_refused(
    config: PreTrainedConfig,
    quantization: dict[str, Any],
    size: int,
    message: str,
    tmp_path: Path,
) -> None:
    write_config(config, tmp_path)
    quantize(tmp_path, quantization)
    with pytest.raises(ModelError, match=f"--tensor-parallel-size {size}: .*{message}"):
        check_ranks(ModelConfig(model=str(tmp_path)), size)


def check_spec(config: PreTrainedConfig) -> None:
    spec = decoder_spec(config)
    check_shards(spec.divisions, spec.vocab_size, 4, 1)


def test_a_size_that_nothing_has_is_not_asked_to_divide() -> None:
    """Where all layers have experts there is no MLP."""
    config = Qwen3MoeConfig(**WIDE | {"intermediate_size": 50}, **EXPERTS)
    check_spec(config)
    config.mlp_only_layers = [0]
    with pytest.raises(ModelError, match="intermediate_size 50 does not divide"):
        check_spec(config)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(
    ("columns", "group"), [(2880, 32), (2880, 1), (11008, 128), (18944, 128), (1100, 128)]
)
def test_columns_are_divided_by_whole_groups(columns: int, group: int, size: int) -> None:
    """Published sizes among them, gpt-oss' and Llama-2-7B's; the last has a part of a group."""
    check_shards([Division(COLUMNS, columns, "columns")], 8192, size, group)
    ranks = [RankShares(SilentRank(rank, size), group) for rank in range(size)]
    shares = [rank.columns(columns) for rank in ranks]
    assert shares[0].first == 0
    for one, following in pairwise(shares):
        assert one.first + one.length == following.first
        assert following.first % group == 0
    assert shares[-1].first + shares[-1].length == columns
    counts = [-(-share.length // group) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert min(counts) > 0
    if columns % (size * group) == 0:
        assert len(set(counts)) == 1


class SilentRank:
    """The `RankExchange` of a rank that sends nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is reported")


@pytest.mark.parametrize(("keys", "size"), [(8, 2), (8, 8), (2, 4), (2, 8), (1, 8)])
def test_heads_stay_with_their_keys(keys: int, size: int) -> None:
    check_shards([Division(HEADS, 16), Division(KEYS, keys)], 8192, size, 1)
    for rank in range(size):
        ranks = RankShares(SilentRank(rank, size))
        heads, shared = ranks.heads(16), ranks.keys(keys)
        own = range(heads.first, heads.first + heads.length)
        held = range(shared.first, shared.first + shared.length)
        assert [head * keys // 16 for head in own] == [
            held[i * len(held) // len(own)] for i in range(len(own))
        ]
