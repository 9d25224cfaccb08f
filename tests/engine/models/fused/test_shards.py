"""Decoders in parts are the whole decoder, and those that cannot be divided are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from engine.config import ModelConfig
from engine.contracts.attention import KVCache
from engine.errors import ModelError
from engine.kernels.fp8 import quantize_rows
from engine.kernels.quantized.fp8_blocks import quantize_spans_torch
from engine.kernels.quantized.int4 import pack
from engine.models import loader
from engine.models.checkpoint.weights import Checkpoint
from engine.models.loader import check_ranks, load_model
from engine.models.quantized.parts import BlockPart, DensePart, Fp8Part, Int4Part
from engine.parallel.collectives import summed
from engine.startup.kv_scales import kv_scales
from sampling.noise import TILE
from sampling.shard import LoneRank, RankExchange
from tests.engine.models.quantized.packers import Tensors, awq, gptq, round_weight, write_quantized
from tests.engine.models.serving import (
    GROUPED,
    LATENT,
    SIZES,
    PagedRows,
    expected,
    some_ids,
    write_tiny,
)
from tests.sampling.ranks import on_ranks

CPU = torch.device("cpu")
VOCAB = 4 * TILE + 9
WIDE = {**GROUPED, "vocab_size": VOCAB}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
EIGHT = {**SIZES, "vocab_size": 8 * TILE, "num_attention_heads": 8, "num_key_value_heads": 4}
DIVIDED_LATENT = {**LATENT, "num_key_value_heads": 4, "first_k_dense_replace": 1}
MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**WIDE),
    "tied": LlamaConfig(**WIDE, tie_word_embeddings=True),
    "biases": LlamaConfig(**WIDE, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**WIDE),
    "qwen3": Qwen3Config(**WIDE, head_dim=16),
    "mixtral": MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
    "shared expert": Qwen2MoeConfig(**WIDE, **EXPERTS, shared_expert_intermediate_size=40),
    "qwen3-moe": Qwen3MoeConfig(**WIDE, **EXPERTS, head_dim=16, mlp_only_layers=[0]),
    "olmoe": OlmoeConfig(**WIDE, num_experts=6, num_experts_per_tok=3, clip_qkv=0.5),
    "deepseek-v2-lite": DeepseekV2Config(**WIDE | DIVIDED_LATENT),
    "deepseek-v3": DeepseekV3Config(
        **WIDE | DIVIDED_LATENT | {"q_lora_rank": 24}, n_group=3, topk_group=2
    ),
}
SIX_HEADS = {**WIDE, "hidden_size": 48, "num_attention_heads": 6}
PARTS = [(0, 0, 20), (1, 0, 7), (2, 0, 1)]


@torch.inference_mode()
def logits_of(folder: Path, exchange: RankExchange, **settings: Any) -> torch.Tensor:
    """A rank's part of the logits of a few tokens, [28, width]."""
    model = load_model(ModelConfig(model=str(folder), **settings), CPU, exchange)
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


def test_a_rank_reads_its_parts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole are the embedding and the norms."""
    write_tiny(MODELS["llama"], tmp_path)
    whole: list[str] = []
    stored = Checkpoint.stored

    def reading(checkpoint: Checkpoint, name: str) -> torch.Tensor:
        whole.append(name)
        return stored(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "stored", reading)
    on_ranks(2, lambda exchange: load_model(ModelConfig(model=str(tmp_path)), CPU, exchange))
    assert whole
    assert all("norm" in name or "embed" in name for name in whole)


@pytest.mark.parametrize("name", ["llama", "deepseek-v2-lite"])
def test_scales_of_keys_are_those_of_one_rank(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS[name], tmp_path)

    def work(exchange: RankExchange) -> list[torch.Tensor]:
        model = load_model(ModelConfig(model=str(tmp_path)), CPU, exchange)
        return list(kv_scales(model, CPU, 16, 128))

    parts = on_ranks(2, work)
    for layer, alone in enumerate(work(LoneRank())):
        assert torch.equal(torch.cat([part[layer] for part in parts], dim=1), alone)


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
            "experts' inner size 25 .* does not divide",
        ),
        (
            GptOssConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
            2,
            "only layers like Llama's, with experts or without",
        ),
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
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"--tensor-parallel-size {size}: .*{message}"):
        check_ranks(ModelConfig(model=str(tmp_path)), size, torch.device("cpu"))


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


def test_transformers_modules_are_refused(tmp_path: Path) -> None:
    LlamaConfig(**WIDE, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    config = ModelConfig(model=str(tmp_path), model_impl="transformers")
    with pytest.raises(ModelError, match="--model-impl transformers was asked for; leave"):
        check_ranks(config, 2, torch.device("cpu"))


QUANTIZED = {**WIDE, "hidden_size": 64, "intermediate_size": 128}


def by_gptq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rounded = round_weight(weight, 32, symmetric=False)
    return gptq(rounded), rounded.values()


def by_awq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rounded = round_weight(weight, 32, symmetric=False)
    return awq(rounded), rounded.values()


def by_tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    stored = {"weight": values, "weight_scale": scale[None], "input_scale": torch.tensor(0.03)}
    return stored, values.float() * scale


SCHEMES: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, by_gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, by_awq),
    "fp8 by tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, by_tensor),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_quantized_parts_make_up_the_model(name: str, tmp_path: Path) -> None:
    """Inputs are rounded alike whoever holds them, or not at all."""
    config, module = SCHEMES[name]
    write_quantized(tmp_path, config, module, QUANTIZED)
    whole = torch.cat(on_ranks(2, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    torch.testing.assert_close(whole, logits_of(tmp_path, LoneRank()), rtol=0, atol=2e-4)


def test_groups_that_ranks_would_share_are_refused(tmp_path: Path) -> None:
    write_quantized(tmp_path, *SCHEMES["gptq"], QUANTIZED)
    with pytest.raises(ModelError, match=r"size 4: .*o_proj' are not divided: inputs 0 to 16 are"):
        on_ranks(4, lambda exchange: logits_of(tmp_path, exchange))


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "olmoe", "deepseek-v2-lite"])
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
        product = summed(part.inputs(each).product(None, torch.float32), exchange)
        return product(x[:, each].contiguous())

    for found in on_ranks(2, work):
        error = (found.double() - wanted).abs() / wanted.abs().amax(1, keepdim=True)
        assert error.max() < 96 * 2.0**-24  # float32 sums of 96 terms


@pytest.mark.parametrize("kind", ["dense", "fp8", "blocks", "4 bits", "4 bits with zeros"])
def test_parts_of_weights_are_those_of_the_whole(kind: str) -> None:
    weight = torch.randn(60, 640, generator=torch.Generator().manual_seed(3))
    part: DensePart | Fp8Part | BlockPart | Int4Part = DensePart(weight)
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
