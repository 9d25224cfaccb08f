"""Scales that a checkpoint has for float8 keys and values: logits are those of the scheme.

Transformers' own model with an attention in float64 over keys and values rounded by numpy. As in
`test_fp8_checkpoints`, a key that lies within float32's error of the middle of two float8 numbers
may round the other way, which moves its row from there on: half of all positions must agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AttentionInterface,
    DeepseekV2Config,
    GptOssConfig,
    LlamaConfig,
    Phi3Config,
)

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.kv_scales import stored_kv_scales
from engine.models.loader import load_model
from engine.startup.kv_scales import kv_scales
from sampling.device.ranks import RankExchange
from sampling.noise import TILE
from tests.engine.models.formats.float8_scheme import e4m3
from tests.engine.models.formats.packers import rewrite
from tests.engine.models.serving import (
    GROUPED,
    LATENT,
    SIZES,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)
from tests.sampling.ranks import on_ranks

CPU = torch.device("cpu")
ATTENTION = "model.layers.{}.self_attn."
KEY, VALUE = 0.75 * 2.0**-9, 2.0**-9
"""So small that keys and values are cut off; the first is no power of two."""
UP = torch.tensor([2.0**-9, 2.0**-9])[:, None].expand(2, 2)
FLOAT8 = {"type": "float", "num_bits": 8, "symmetric": True, "strategy": "tensor"}


def with_scales(folder: Path, *layers: dict[str, Any], **scheme: Any) -> None:
    """Add scales to a checkpoint, by their names in each layer's attention."""
    tensors = load_file(folder / "model.safetensors")
    for index, scales in enumerate(layers):
        for name, scale in scales.items():
            tensors[ATTENTION.format(index) + name] = torch.tensor(scale)
    rewrite(folder, tensors, None)
    if scheme:
        path = folder / "config.json"
        quantization = {
            "quant_method": "compressed-tensors",
            "config_groups": {},
            "kv_cache_scheme": scheme,
        }
        content = json.loads(path.read_text()) | {"quantization_config": quantization}
        path.write_text(json.dumps(content))


def stored(folder: Path) -> list[torch.Tensor | None]:
    config = ModelConfig(model=str(folder))
    return stored_kv_scales(config, load(folder).attention_specs, CPU)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(LlamaConfig(**GROUPED), tmp_path)
    return tmp_path


def rounded_attention(
    scales: Iterator[torch.Tensor],
    module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention in float64 over keys and values in e4m3, [rows, heads, tokens, lanes]."""
    k, v = (
        e4m3(x.double() / own.double()[:, None, None]) * own.double()[:, None, None]
        for x, own in zip((k, v), next(scales), strict=True)
    )
    k, v = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) * scaling
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    probs = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (probs @ v).transpose(1, 2).to(q.dtype), None


@pytest.mark.parametrize(
    "names",
    [
        {"k_scale": KEY, "v_scale": VALUE},
        {"k_scale": [KEY], "v_scale": [[VALUE]]},
        {"attn.k_scale": KEY, "attn.v_scale": VALUE},
        {"k_proj.output_scale": KEY, "v_proj.output_scale": VALUE, "q_proj.output_scale": 1.0},
        {"k_proj.k_scale": KEY, "v_proj.v_scale": VALUE},
        {"kv_scale": KEY},
        {"k_scale": [[[KEY]], [[VALUE]]], "v_scale": [VALUE, KEY]},
    ],
)
def test_every_name_of_them_is_read(names: dict[str, Any], folder: Path) -> None:
    with_scales(folder, names, names)
    for scales in stored(folder):
        assert scales is not None
        assert torch.equal(scales, UP)


def test_logits_are_those_of_the_scheme(tmp_path: Path) -> None:
    """With other scales a head: what they cut off differs."""
    reference = write_tiny(LlamaConfig(**GROUPED), tmp_path)
    first = {"k_scale": [2.0**-9, 1.5 * 2.0**-9], "v_scale": [2.0**-9, 2.0**-10]}
    with_scales(tmp_path, first, {"k_scale": KEY, "v_scale": VALUE}, **FLOAT8)
    by_layer = [torch.tensor([[2.0**-9, 2.0**-8], [2.0**-9, 2.0**-10]]), UP]
    ids = some_ids()
    exact = expected(reference, ids)
    AttentionInterface.register("rounded", partial(rounded_attention, iter(by_layer)))
    reference.set_attn_implementation("rounded")
    wanted = expected(reference, ids)

    model = load(tmp_path)
    scales = kv_scales(model, CPU, 4, 128, stored(tmp_path))
    for own, known in zip(scales, by_layer, strict=True):
        assert torch.equal(own, known)
    error, rounding_error = serve(model, ids, scales=scales) - wanted, wanted - exact
    assert (error.abs().amax(-1) < 1e-4).double().mean() > 0.5
    assert error.norm() < 0.2 * rounding_error.norm()
    by_warm_up = serve(model, ids, scales=kv_scales(model, CPU, 4, 128)) - wanted
    assert by_warm_up.norm() > 0.5 * rounding_error.norm(), "scales of its own cut nothing off"


def test_layers_without_scales_get_their_own(folder: Path) -> None:
    with_scales(folder, {"kv_scale": KEY})
    model = load(folder)
    alone = kv_scales(model, CPU, 4, 128)
    found = stored(folder)
    assert found[1] is None
    scales = kv_scales(model, CPU, 4, 128, found)
    assert torch.equal(scales[0], UP)
    assert torch.equal(scales[1], alone[1])


@pytest.mark.parametrize("change", [{"num_bits": 8, "type": "int"}, {"symmetric": False}])
def test_scales_of_another_form_are_passed_over(change: dict[str, Any], folder: Path) -> None:
    with_scales(folder, {"kv_scale": KEY}, {"kv_scale": KEY}, **FLOAT8 | change)
    assert stored(folder) == [None, None]


def test_scales_of_compressed_vectors_are_passed_over(tmp_path: Path) -> None:
    write_tiny(DeepseekV2Config(**SIZES, **LATENT), tmp_path)
    with_scales(tmp_path, {"k_scale": KEY, "v_scale": VALUE})
    assert stored(tmp_path) == [None, None]


def test_random_weights_have_none(folder: Path) -> None:
    with_scales(folder, {"kv_scale": KEY}, {"kv_scale": KEY})
    config = ModelConfig(model=str(folder), load_format="dummy")
    assert stored_kv_scales(config, load(folder).attention_specs, CPU) == [None, None]


@pytest.mark.parametrize(("num_keys", "size"), [(4, 2), (2, 4), (1, 2)])
@pytest.mark.parametrize("family", [LlamaConfig, Phi3Config, GptOssConfig])
def test_ranks_take_those_of_their_heads(
    family: Any, num_keys: int, size: int, tmp_path: Path
) -> None:
    sizes = {**SIZES, "vocab_size": 4 * TILE, "num_key_value_heads": num_keys}
    write_tiny(family(**sizes), tmp_path)
    powers = [2.0**-i for i in range(num_keys)]
    with_scales(tmp_path, {"k_scale": powers, "v_scale": 1.0}, {"kv_scale": powers})

    def work(exchange: RankExchange) -> list[torch.Tensor | None]:
        config = ModelConfig(model=str(tmp_path))
        specs = load_model(config, CPU, exchange).attention_specs
        return stored_kv_scales(config, specs, CPU, exchange)

    for rank, parts in enumerate(on_ranks(size, work)):
        own = powers[rank * num_keys // size :][: max(num_keys // size, 1)]
        assert parts[0] is not None
        assert parts[1] is not None
        assert parts[0].tolist() == [own, [1.0] * len(own)]
        assert parts[1].tolist() == [own, own]


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"k_scale": 1.0}, "tensor 'model.layers.0.self_attn.v_scale' is missing"),
        ({"v_scale": 1.0}, "tensor 'model.layers.0.self_attn.k_scale' is missing"),
        ({"kv_scale": 0.0}, "self_attn.kv_scale' holds a scale that is not a positive number"),
        ({"k_scale": 1.0, "v_scale": float("nan")}, "v_scale' holds a scale that is not a positi"),
        ({"k_scale": [1.0] * 3, "v_scale": 1.0}, "k_scale' has 3 scales, attention asks for 1 or"),
    ],
)
def test_scales_that_are_none(scales: dict[str, Any], message: str, folder: Path) -> None:
    with_scales(folder, scales)
    load(folder)  # a cache in the model's dtype asks for none of them
    with pytest.raises(ModelError, match=message) as error:
        stored(folder)
    assert "\n" not in str(error.value)
    assert str(folder / "model.safetensors") in str(error.value)
    assert "leave --kv-cache-dtype out" in str(error.value)
