"""Quantized weights by their names: read as they are stored, and written in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.contracts.named_weights import WeightError
from engine.contracts.weights import LetWeightsGo, WeightUpdateError
from engine.models.loader import load_model
from engine.models.weights.stored import IGNORED
from sampling.device.ranks import RankExchange
from tests.engine.models.families.ordered_shards import DESC_ACT, WITH_SHARED, ordered
from tests.engine.models.families.quantized_shards import QUANTIZED, SCHEMES
from tests.engine.models.families.shard_models import CPU, widened
from tests.engine.models.families.shard_models import MODELS as DIVIDED
from tests.engine.models.formats import compressed
from tests.engine.models.formats.expert_models import MODELS as EXPERTS
from tests.engine.models.formats.float8_experts import STATIC, with_input_scale
from tests.engine.models.formats.general_checkpoints import MODELS as FAMILIES
from tests.engine.models.formats.gpt_oss import MODEL as GPT_OSS
from tests.engine.models.formats.gpt_oss import write_gpt_oss
from tests.engine.models.formats.int4_schemes import AWQ, GPTQ, ORDERED, in_order
from tests.engine.models.formats.packers import (
    Tensors,
    gptq,
    packed,
    round_weight,
    write_quantized,
    write_quantized_experts,
)
from tests.engine.models.rewriting import (
    assert_holds,
    assert_regained,
    lose,
    stored_tensors,
    text_logits,
    write_in_pieces,
    write_other,
)
from tests.engine.models.serving import load, write_tiny
from tests.engine.weights.rooms import given, room_of, update
from tests.sampling.ranks import on_ranks

Write = Callable[[Path], Any]
Stored = tuple[Tensors, torch.Tensor]


def by_scheme(name: str) -> Write:
    config, module, sizes = SCHEMES[name]
    return lambda folder: write_quantized(folder, config, module, sizes)


def with_zero_biases(name: str, weight: torch.Tensor) -> Stored:
    rounded = round_weight(weight, 32, symmetric=False)
    return gptq(rounded) | {"bias": torch.zeros(len(weight)).half()}, rounded.values()


def partly(name: str, weight: torch.Tensor) -> Stored:
    """Products of which one projection is symmetric, and one is not quantized."""
    if name.endswith("v_proj"):
        return {"weight": weight}, weight
    rounded = round_weight(weight, -1, symmetric=name.endswith("q_proj"))
    return gptq(rounded, version="gptq_v2", has_g_idx=False), rounded.values()


def ordered_expert(name: str, weight: torch.Tensor) -> Stored:
    plain = round_weight(weight, 32, symmetric=False)
    down = name.replace("down_proj", "w2")
    rounded = plain if ".experts.3." in name else in_order(down, weight)
    return gptq(rounded), rounded.values()


def packed_in_order(name: str, weight: torch.Tensor) -> Stored:
    rounded = in_order(name, weight)
    return packed(rounded), rounded.values()


PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", r"re:.*\.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
            | {"group_size": 32, "actorder": "group"},
        }
    },
}


def compressed_by(name: str, scheme: Any, layout: str) -> Write:
    model = compressed.MODELS[name]
    return lambda folder: compressed.write_compressed(model, scheme, layout, None, folder)


DIVIDED_CHECKPOINTS: dict[str, Write] = {
    **{name: by_scheme(name) for name in SCHEMES},
    "gptq in order": lambda folder: write_quantized(folder, DESC_ACT, ordered, QUANTIZED),
    "ordered experts": lambda folder: write_quantized_experts(
        folder, widened(ORDERED), DESC_ACT, ordered_expert
    ),
    "ordered shared expert": lambda folder: write_quantized_experts(
        folder, WITH_SHARED, DESC_ACT, ordered_expert
    ),
    "mxfp4": lambda folder: write_gpt_oss(folder, widened(GPT_OSS)),
}
CHECKPOINTS: dict[str, Write] = DIVIDED_CHECKPOINTS | {
    "zero biases": lambda folder: write_quantized(folder, GPTQ, with_zero_biases),
    "partly": lambda folder: write_quantized(
        folder, GPTQ | {"group_size": -1, "checkpoint_format": "gptq_v2"}, partly
    ),
    "awq packed families": lambda folder: write_quantized(
        folder, AWQ, SCHEMES["awq"][1], model=FAMILIES["phi3"]
    ),
    "awq side by side": lambda folder: write_quantized(
        folder, AWQ, SCHEMES["awq"][1], model=FAMILIES["stablelm-parallel"]
    ),
    "fp8 experts with scales of inputs": lambda folder: write_quantized_experts(
        folder, EXPERTS["mixtral"], STATIC | {"modules_to_not_convert": ["gate"]}, with_input_scale
    ),
    "packed in order": lambda folder: write_quantized_experts(
        folder, ORDERED, PACKED, packed_in_order
    ),
    "compressed 4 bits": compressed_by("mixtral", compressed.BY_GROUP, "pack-quantized"),
    "compressed float8": compressed_by("llama", compressed.BY_CHANNEL, "float-quantized"),
    "compressed float8 by tensor": compressed_by("phi3", compressed.BY_TENSOR, "float-quantized"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_format_is_rewritten(name: str, tmp_path: Path) -> None:
    """Bits are those of a model that was loaded with the new weights."""
    CHECKPOINTS[name](tmp_path / "old")
    model = load(tmp_path / "old")
    named, old = model.named_weights(), stored_tensors(tmp_path / "old")
    assert all(IGNORED.search(each) for each in old.keys() - named.keys())
    assert_holds(named, old)
    new = write_other(tmp_path / "old", tmp_path / "new")
    wanted = text_logits(load(tmp_path / "new"))
    assert not torch.equal(text_logits(model), wanted)
    write_in_pieces(named, new)
    assert torch.equal(text_logits(model), wanted)
    assert_holds(named, new)
    assert_regained(model, new)


def load_part(exchange: RankExchange, folder: Path, **settings: Any) -> CausalLM:
    return load_model(ModelConfig(model=str(folder), **settings), CPU, exchange)


@pytest.mark.parametrize("name", DIVIDED_CHECKPOINTS)
def test_ranks_write_their_parts(name: str, tmp_path: Path) -> None:
    DIVIDED_CHECKPOINTS[name](tmp_path / "old")
    old, new = stored_tensors(tmp_path / "old"), write_other(tmp_path / "old", tmp_path / "new")

    def rewrite(exchange: RankExchange) -> torch.Tensor:
        model = load_part(exchange, tmp_path / "old")
        assert_holds(model.named_weights(), old)
        write_in_pieces(model.named_weights(), new)
        assert_holds(model.named_weights(), new)
        assert_regained(model, new)
        return text_logits(model)

    wanted = on_ranks(2, lambda exchange: text_logits(load_part(exchange, tmp_path / "new")))
    for got, own in zip(on_ranks(2, rewrite), wanted, strict=True):
        assert torch.equal(got, own)


ROUNDED: dict[str, hf.PreTrainedConfig] = {
    "biases": DIVIDED["biases"],
    "gpt-oss": DIVIDED["gpt-oss"],
    "qwen3-moe": DIVIDED["qwen3-moe"],
    "phi3": DIVIDED["phi3-partial"],
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ROUNDED)
def test_weights_that_are_rounded_at_load(name: str, size: int, tmp_path: Path) -> None:
    """They are given in full, rounded as at load, and read as rounded."""
    write_tiny(ROUNDED[name], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    load_rounded = partial(load_part, quantization="fp8")

    def rewrite(exchange: RankExchange) -> tuple[torch.Tensor, Tensors]:
        model = load_rounded(exchange, tmp_path / "old")
        named = model.named_weights()
        assert named.keys() == new.keys()
        write_in_pieces(named, new)
        assert_regained(model, new)
        return text_logits(model), {name: each.read() for name, each in named.items()}

    def wanted(exchange: RankExchange) -> tuple[torch.Tensor, Tensors]:
        model = load_rounded(exchange, tmp_path / "new")
        held = {name: each.read() for name, each in model.named_weights().items()}
        return text_logits(model), held

    for got, own in zip(on_ranks(size, rewrite), on_ranks(size, wanted), strict=True):
        assert torch.equal(got[0], own[0])
        assert all(torch.equal(each, own[1][name]) for name, each in got[1].items())
        for name, each in got[1].items():  # three bits of a float8 number follow its first
            largest = new[name].abs().amax()
            assert (each - new[name]).abs().amax() <= largest * 2**-4


@pytest.mark.parametrize(
    ("checkpoint", "end"),
    [("gptq in order", "q_proj.g_idx"), ("fp8 by tensor", "down_proj.input_scale")],
)
def test_what_lays_others_out_cannot_change(checkpoint: str, end: str, tmp_path: Path) -> None:
    CHECKPOINTS[checkpoint](tmp_path)
    model = load(tmp_path)
    before = text_logits(model)
    name = f"model.layers.1.{'self_attn' if end.startswith('q') else 'mlp'}.{end}"
    weight = model.named_weights()[name]
    weight.write(weight.read())
    with pytest.raises(WeightError, match=f"{name}.*cannot change") as error:
        weight.write(weight.read() + 1)
    assert error.value.code == "fixed_weight"
    assert torch.equal(text_logits(model), before)


@pytest.mark.parametrize(
    ("checkpoint", "ends"),
    [
        ("gptq in order", ("g_idx",)),
        ("packed in order", ("weight_g_idx", "weight_shape")),
        ("fp8 by tensor", ("input_scale",)),
        ("zero biases", ("proj.bias",)),
    ],
)
def test_what_can_only_be_written_as_it_is_is_never_lacking(
    checkpoint: str, ends: tuple[str, ...], tmp_path: Path
) -> None:
    """It is held on the host, so a trainer need not send it after a sleep at level 2."""
    CHECKPOINTS[checkpoint](tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    model = load(tmp_path / "old")
    named, room = model.named_weights(), room_of(model)
    kept = {name for name in named if name.endswith(ends)}
    assert kept
    room.run(LetWeightsGo())
    lose(named)
    sent = {name: new[name] for name in named if name not in kept}
    last = max(sent)
    assert update(room, given({n: t for n, t in sent.items() if n != last})).num_lacking == 1
    assert update(room, given({last: sent[last]})).num_lacking == 0
    assert torch.equal(text_logits(model), text_logits(load(tmp_path / "new")))


@pytest.mark.parametrize("value", [65504.0, 65536.0])
def test_scales_are_checked_as_they_are_held(value: float, tmp_path: Path) -> None:
    """One that is infinite there would end the engine once the rest of its module is written."""
    CHECKPOINTS["gptq in order"](tmp_path)
    model, stored = load(tmp_path), stored_tensors(tmp_path)
    module = "model.layers.0.mlp.down_proj"
    scales = stored[f"{module}.scales"].float()
    scales[0, 0] = value
    room = room_of(model)
    sent, others = (
        given({f"{module}.scales": scales}),
        given({f"{module}.qweight": stored[f"{module}.qweight"]}),
    )
    if value > torch.finfo(torch.float16).max:
        with pytest.raises(WeightUpdateError, match=f"{module}.*not finite as float16") as error:
            update(room, sent)
        assert error.value.code == "not_finite"
    else:
        update(room, sent)
    update(room, others)
