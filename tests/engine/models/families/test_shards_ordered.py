"""Weights of 4 bits in the order of activations, in parts: each input has the scale it had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from engine.models.formats.int4 import Int4Part
from engine.models.formats.scheme import Scheme
from engine.models.formats.unpack import ModuleTensors, unpack
from engine.models.weights.sources import Checkpoint
from sampling.device.ranks import RankExchange
from tests.engine.models.families.ordered_shards import DESC_ACT, WITH_SHARED, ordered
from tests.engine.models.families.quantized_shards import QUANTIZED
from tests.engine.models.families.shard_models import CPU, logits_of, wanted_of, widened
from tests.engine.models.formats.general_checkpoints import MODELS as FAMILIES
from tests.engine.models.formats.int4_schemes import ORDERED, in_order
from tests.engine.models.formats.packers import (
    Tensors,
    gptq,
    packed,
    round_weight,
    write_quantized,
    write_quantized_experts,
)
from tests.engine.startup.stated import stated
from tests.sampling.ranks import on_ranks

WIDTH = 1024


def stored_part(folder: Path, tensors: Tensors, scheme: Scheme, num_channels: int) -> Int4Part:
    """A module's weight as the reader unpacks it."""
    save_file({f"m.{name}": each for name, each in tensors.items()}, folder / "model.safetensors")
    shape = (num_channels, WIDTH)
    part = unpack(scheme, ModuleTensors(Checkpoint(folder), "m", shape, CPU))
    assert isinstance(part, Int4Part)
    return part


def some_orders() -> dict[str, np.ndarray]:
    """Inputs by their groups: any, and such that neighbours are often of one group."""
    rng = np.random.default_rng(1)
    near = np.argsort(np.arange(WIDTH) + rng.normal(0, WIDTH / 8, WIDTH))
    return {"any": rng.permutation(WIDTH), "near": near}


@pytest.mark.parametrize("order", some_orders().values(), ids=some_orders())
@pytest.mark.parametrize("group", [32, 128, 512])
@pytest.mark.parametrize("stored", ["gptq", "packed", "packed without zeros"])
def test_a_rank_s_inputs_are_those_of_the_whole(
    stored: str, group: int, order: np.ndarray, tmp_path: Path
) -> None:
    """Bit for bit, also where a rank has none of a group, or all of it."""
    weight = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(group))
    rounded = round_weight(weight, group, symmetric=stored.endswith("zeros"), order=order)
    scheme = Scheme(storage="gptq", group=group, zero_offset=1)
    tensors = gptq(rounded)
    if stored != "gptq":
        tensors = packed(rounded)
        has_zeros = stored == "packed"
        scheme = Scheme(storage="packed", group=group, has_zeros=has_zeros)
        if not has_zeros:
            del tensors["weight_zero_point"]
    whole, values = stored_part(tmp_path, tensors, scheme, len(weight)), rounded.values()
    assert torch.equal(whole.dequantized(), values)
    for size in (2, 4, 8):
        for start in range(0, WIDTH, WIDTH // size):
            own = slice(start, start + WIDTH // size)
            part = whole.inputs(own)
            assert torch.equal(part.dequantized(), values[:, own])
            assert part.order is not None
            assert part.groups.in_features == len(part.order) <= WIDTH


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["llama", "phi3", "starcoder2"])
def test_ordered_parts_make_up_the_model(name: str, size: int, tmp_path: Path) -> None:
    """Of a head's 16 lanes that a rank of four has, too, which are no whole group."""
    model = None if name == "llama" else widened(FAMILIES[name], intermediate_size=128)
    reference = write_quantized(tmp_path, DESC_ACT, ordered, QUANTIZED, model)
    whole = torch.cat(on_ranks(size, lambda exchange: logits_of(tmp_path, exchange)), dim=1)
    torch.testing.assert_close(whole, wanted_of(reference), rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", [widened(ORDERED), WITH_SHARED], ids=["mixtral", "shared expert"])
def test_ordered_experts_in_parts(model: hf.PreTrainedConfig, tmp_path: Path) -> None:
    """Of three groups one rank has two. Expert 3 has no order, as one not reached by calibration.

    Their statement of error is of the same parts: nothing but 4 bits is rounded, which is theirs.
    """

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        plain = round_weight(weight, 32, symmetric=False)
        down = name.replace("down_proj", "w2")
        rounded = plain if ".experts.3." in name else in_order(down, weight)
        return gptq(rounded), rounded.values()

    reference = write_quantized_experts(tmp_path, model, DESC_ACT, module)

    def work(exchange: RankExchange) -> tuple[torch.Tensor, float | None]:
        return logits_of(tmp_path, exchange), stated(tmp_path, exchange).mean_kl

    ranks = on_ranks(2, work)
    whole = torch.cat([logits for logits, _ in ranks], dim=1)
    torch.testing.assert_close(whole, wanted_of(reference), rtol=0, atol=1e-4)
    for _, mean_kl in ranks:
        assert mean_kl is not None
        assert mean_kl < 1e-9
