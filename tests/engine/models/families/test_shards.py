"""Decoders in parts are the whole decoder, of every family and in every dtype."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine.config import ModelConfig
from engine.memory.pages import KVCache
from engine.models.loader import load_model
from engine.models.weights.sources import Checkpoint
from engine.startup.kv_scales import kv_scales
from sampling.device.ranks import LoneRank, RankExchange
from sampling.noise import TILE
from tests.engine.models.families.shard_models import (
    CPU,
    MODELS,
    VOCAB,
    count_parts,
    logits_of,
    wanted_of,
    widened,
    write_config,
)
from tests.engine.models.serving import (
    write_tiny,
)
from tests.sampling.ranks import on_ranks


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_parts_make_up_the_model(name: str, size: int, tmp_path: Path) -> None:
    """Of four key heads, four ranks hold one each; of two, two ranks share one."""
    wanted = wanted_of(write_tiny(MODELS[name], tmp_path))
    parts = on_ranks(size, lambda exchange: logits_of(tmp_path, exchange))
    whole = torch.cat(parts, dim=1)
    assert whole.shape == (28, VOCAB)
    torch.testing.assert_close(whole, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "gemma3", "phi3-partial"])
def test_eight_ranks_share_four_key_heads(name: str, tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8 * TILE}
    write_tiny(widened(MODELS[name], **sizes), tmp_path)
    whole = torch.cat(on_ranks(8, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    torch.testing.assert_close(whole, logits_of(tmp_path, LoneRank()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "phi3-partial", "stablelm-parallel"])
def test_random_weights_are_those_of_one_rank(name: str, tmp_path: Path) -> None:
    write_config(MODELS[name], tmp_path)

    def work(exchange: RankExchange) -> torch.Tensor:
        return logits_of(tmp_path, exchange, load_format="dummy")

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


WHOLE = re.compile(
    r"norm|embed|\.router\.|\.(o_proj|dense|down_proj|fc2|c_proj)\.bias$|down_proj_bias$"
)
"""What every rank has, and biases of sums, which one rank adds."""


@pytest.mark.parametrize(
    "name", ["llama", "gpt-oss", "gemma3", "glm4", "phi", "phi3-partial", "starcoder2"]
)
def test_a_rank_reads_its_parts_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(MODELS[name], tmp_path)
    whole, sizes = set(), count_parts(monkeypatch)
    stored = Checkpoint.stored

    def reading(checkpoint: Checkpoint, name: str) -> torch.Tensor:
        whole.add(name)
        return stored(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "stored", reading)
    on_ranks(2, lambda exchange: load_model(ModelConfig(model=str(tmp_path)), CPU, exchange))
    assert whole
    assert all(WHOLE.search(name) for name in whole)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as tensors:
        assert {n: math.prod(tensors.get_slice(n).get_shape()) for n in sizes} == sizes
        assert set(tensors.keys()) == whole | set(sizes)


@pytest.mark.parametrize("name", ["llama", "deepseek-v2-lite", "gpt-oss", "gemma3", "olmo3"])
def test_scales_of_keys_are_those_of_one_rank(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS[name], tmp_path)

    def work(exchange: RankExchange) -> list[torch.Tensor]:
        model = load_model(ModelConfig(model=str(tmp_path)), CPU, exchange)
        return list(kv_scales(model, CPU, 16, 128))

    parts = on_ranks(2, work)
    for layer, alone in enumerate(work(LoneRank())):
        assert torch.equal(torch.cat([part[layer] for part in parts], dim=1), alone)


@pytest.mark.parametrize("name", ["gemma3", "phi", "cohere2", "olmo2", "glm4", "starcoder2"])
def test_narrow_types_stay_near(name: str, tmp_path: Path) -> None:
    """As of one rank, see `test_decoder`; both ranks' parts of the four sums are rounded besides.

    A rank's part is about as large as the sum over the square root of two.
    """
    wanted = wanted_of(write_tiny(MODELS[name], tmp_path))
    parts = on_ranks(2, lambda exchange: logits_of(tmp_path, exchange, dtype="bfloat16"))
    error = (torch.cat(parts, dim=1) - wanted).norm() / wanted.norm()
    assert error < 34**0.5 * torch.finfo(torch.bfloat16).eps
