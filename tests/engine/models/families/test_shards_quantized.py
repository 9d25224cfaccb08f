"""Quantised decoders in parts: groups under one scale stay whole, and rounding is no coarser."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.kernels.fp8 import quantize_rows
from engine.kernels.quantized.fp8_blocks import quantize_spans_torch
from engine.kernels.quantized.int4 import pack
from engine.models.decoder import Decoder
from engine.models.formats.dense import DensePart
from engine.models.formats.fp8 import Fp8Part
from engine.models.formats.fp8_blocks import BlockPart
from engine.models.formats.int4 import Int4Part
from engine.models.formats.part import Part
from engine.models.loader import load_model
from engine.parallel.collectives import summed
from sampling.device.ranks import LoneRank, RankExchange
from tests.engine.models.families.quantized_shards import (
    QUANTIZED,
    SCHEMES,
)
from tests.engine.models.families.shard_models import (
    CPU,
    MODELS,
    count_parts,
    logits_of,
    wanted_of,
    widened,
    write_config,
)
from tests.engine.models.formats.general_checkpoints import MODELS as FAMILIES
from tests.engine.models.formats.general_checkpoints import by_awq
from tests.engine.models.formats.gpt_oss import MODEL as GPT_OSS
from tests.engine.models.formats.gpt_oss import write_gpt_oss
from tests.engine.models.formats.int4_schemes import AWQ
from tests.engine.models.formats.packers import write_quantized
from tests.engine.models.serving import write_tiny
from tests.sampling.ranks import on_ranks


@pytest.mark.parametrize("name", SCHEMES)
def test_quantized_parts_make_up_the_model(name: str, tmp_path: Path) -> None:
    """Inputs are rounded alike whoever holds them, or not at all.

    One that lies within float32's error of the middle of two float8 numbers may round the other
    way, which moves its row: half of all positions must agree, as in `test_fp8_checkpoints`.
    """
    config, module, sizes = SCHEMES[name]
    write_quantized(tmp_path, config, module, sizes)
    whole = torch.cat(on_ranks(2, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    errors = (whole - logits_of(tmp_path, LoneRank())).abs().amax(-1)
    assert (errors < 2e-4).double().mean() > (0.5 if "fp8" in name else 0.99)


GENERAL = (
    "cohere-biases",
    "gemma3",
    "glm4",
    "granite",
    "olmo2",
    "phi",
    "phi3",
    "stablelm-parallel",
    "starcoder2",
)


@pytest.mark.parametrize("name", GENERAL)
def test_quantized_parts_of_the_families(name: str, tmp_path: Path) -> None:
    """Their MLPs' 96 columns are three groups: one rank has two of them, the other one."""
    reference = write_quantized(tmp_path, AWQ, by_awq, model=widened(FAMILIES[name]))
    whole = torch.cat(on_ranks(2, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    torch.testing.assert_close(whole, wanted_of(reference), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("inner", "size"), [(64, 2), (96, 2), (160, 4)])
def test_experts_in_mxfp4(inner: int, size: int, tmp_path: Path) -> None:
    """Of groups of 32, of which there are not as many for each rank."""
    reference = write_gpt_oss(tmp_path, widened(GPT_OSS, intermediate_size=inner))
    whole = torch.cat(on_ranks(size, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    torch.testing.assert_close(whole, wanted_of(reference), rtol=0, atol=1e-4)


def test_a_rank_reads_its_own_groups_of_mxfp4_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gpt_oss(tmp_path, widened(GPT_OSS))
    sizes = count_parts(monkeypatch)
    on_ranks(2, lambda exchange: load_model(ModelConfig(model=str(tmp_path)), CPU, exchange))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as tensors:
        divided = ("_blocks", "_scales", "q_proj.weight", "o_proj.weight", "lm_head.weight")
        names = [name for name in tensors.keys() if name.endswith(divided)]  # noqa: SIM118
        assert len(names) == 2 * 6 + 1
        for name in names:
            assert sizes[name] == math.prod(tensors.get_slice(name).get_shape())


def test_random_quantized_weights_are_those_of_one_rank(tmp_path: Path) -> None:
    write_config(widened(FAMILIES["phi3"]), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": AWQ}))

    def work(exchange: RankExchange) -> torch.Tensor:
        return logits_of(tmp_path, exchange, load_format="dummy")

    whole = torch.cat(on_ranks(2, work), dim=1)
    torch.testing.assert_close(whole, work(LoneRank()), rtol=0, atol=1e-4)


def test_ranks_with_other_columns_count_the_same_weights(tmp_path: Path) -> None:
    """Which steps are captured depends on the count, and they are the same on all ranks."""
    write_quantized(tmp_path, AWQ, by_awq, QUANTIZED | {"intermediate_size": 96})

    def work(exchange: RankExchange) -> int:
        model = load_model(ModelConfig(model=str(tmp_path)), CPU, exchange)
        assert isinstance(model, Decoder)
        return model.num_weights

    # 64 inputs; of two ranks' 64 and 32 columns the more, queries of two heads and a key head.
    assert on_ranks(2, work) == [2 * 64 * (3 * 64 + 2 * 32 + 2 * 16)] * 2


def test_groups_that_ranks_would_share_are_refused(tmp_path: Path) -> None:
    write_quantized(tmp_path, *SCHEMES["gptq"])
    with pytest.raises(ModelError, match=r"size 4: .*o_proj' are not divided: inputs 0 to 16 are"):
        on_ranks(4, lambda exchange: logits_of(tmp_path, exchange))


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "qwen3-moe",
        "olmoe",
        "deepseek-v2-lite",
        "gpt-oss",
        "gemma2",
        "phi3-partial",
        "cohere-biases",
        "starcoder2",
    ],
)
def test_weights_rounded_at_load_err_as_on_one_rank(name: str, tmp_path: Path) -> None:
    """A rank's part of a row has scales of its own, of weights and of inputs: no coarser ones."""
    write_tiny(MODELS[name], tmp_path, spread=0.1)
    exact = logits_of(tmp_path, LoneRank())

    def rounded(exchange: RankExchange) -> torch.Tensor:
        return logits_of(tmp_path, exchange, quantization="fp8")

    def error(logits: torch.Tensor) -> float:
        return float((logits - exact).norm() / exact.norm())

    whole = torch.cat(on_ranks(2, rounded), dim=1)
    assert 0 < error(whole) < 1.25 * error(rounded(LoneRank()))


@torch.inference_mode()
def test_a_divided_float8_product_is_the_sum_of_its_parts() -> None:
    """Against float64: each rank rounds its part of a token by the largest number in it."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(7, 96, generator=generator) * torch.logspace(-2, 2, 96)
    part = Fp8Part(quantize_rows(torch.randn(40, 96, generator=generator)))
    own = [slice(0, 48), slice(48, 96)]
    terms = [
        quantize_rows(x[:, each].contiguous()).dequantized().double()
        @ part.dequantized()[:, each].double().T
        for each in own
    ]
    wanted = torch.stack(terms).sum(0)

    def work(exchange: RankExchange) -> torch.Tensor:
        each = own[exchange.rank]
        product = summed(part.inputs(each).product(None, torch.float32).linear, exchange)
        return product(x[:, each].contiguous())

    for found in on_ranks(2, work):
        error = (found.double() - wanted).abs() / wanted.abs().amax(1, keepdim=True)
        assert error.max() < 96 * 2.0**-24  # float32 sums of 96 terms


@pytest.mark.parametrize("kind", ["dense", "fp8", "blocks", "4 bits", "4 bits with zeros"])
def test_parts_of_weights_are_those_of_the_whole(kind: str) -> None:
    weight = torch.randn(60, 640, generator=torch.Generator().manual_seed(3))
    part: Part = DensePart(weight)
    if kind == "fp8":
        part = Fp8Part(quantize_rows(weight), 0.25)
    elif kind == "blocks":
        part = BlockPart(quantize_spans_torch(weight))
    elif kind != "dense":
        q = (weight * 3 + 8).clamp(0, 15).to(torch.uint8)
        zeros = torch.full((60, 5), 7, dtype=torch.uint8) if "zeros" in kind else None
        part = Int4Part(pack(q, weight[:, :5].contiguous(), zeros, 128))
    whole = part.dequantized()
    for own in (slice(0, 256), slice(256, 512), slice(512, 640)):
        assert torch.equal(part.inputs(own).dequantized(), whole[:, own])
    for own in (slice(0, 30), slice(30, 60)):
        assert torch.equal(part.channels(own).dequantized(), whole[own])
    if kind not in ("dense", "fp8"):
        for own in (slice(64, 256), slice(128, 200)):
            with pytest.raises(ValueError, match="are not whole groups of 128"):
                part.inputs(own)
