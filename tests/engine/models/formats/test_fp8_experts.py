"""Experts in float8, made at load or read: logits are those of the scheme, in float64.

Transformers' own model whose products are in float64 over inputs rounded by numpy, its routers as
they are. As in `test_fp8_checkpoints` half of all positions must agree within 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from engine.errors import ModelError
from engine.models.decoder import Decoder
from tests.engine.models.formats.expert_models import EXPERTS, MODELS, WIDE
from tests.engine.models.formats.float8_experts import (
    STATIC,
    by_tensor,
    input_scale,
    with_input_scale,
)
from tests.engine.models.formats.float8_scheme import (
    BLOCKS,
    Quantizer,
    Rounding,
    by_span,
    by_token,
    product,
    rounded,
)
from tests.engine.models.formats.float8_scheme import by_tensor as scaled_by_tensor
from tests.engine.models.formats.packers import (
    ROUTERS,
    Tensors,
    rewrite,
    write_quantized_experts,
)
from tests.engine.models.serving import expected, load, serve, some_ids, write_tiny


def experts_forward(
    module: Any,
    rounding: Callable[[str], Rounding],
    x: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
) -> torch.Tensor:
    """The experts of transformers' module by their definition, products in float64.

    Args:
        rounding: of an input, by the name of the product after that of the module.
    """
    out = torch.zeros_like(x, dtype=torch.float64)
    for expert in range(len(module.gate_up_proj)):
        tokens, ranks = (ids == expert).nonzero(as_tuple=True)
        first, second = module.gate_up_proj[expert].double(), module.down_proj[expert].double()
        round_first, round_second = rounding(f"{expert}.gate_up"), rounding(f"{expert}.down")
        if not hasattr(module, "gate_up_proj_bias"):
            gate, up = (round_first(x[tokens]) @ first.T).float().chunk(2, dim=-1)
            inner = round_second(torch.nn.functional.silu(gate) * up) @ second.T
        else:  # gpt-oss
            gate_up = round_first(x[tokens]) @ first + module.gate_up_proj_bias[expert]
            inner = round_second(module._apply_gate(gate_up.float())) @ second
            inner += module.down_proj_bias[expert]
        out.index_add_(0, tokens, shares[tokens, ranks, None].double() * inner)
    return out.to(x.dtype)


def assert_same_as_scheme(
    folder: Path, reference: Any, rounding: Rounding, **settings: Any
) -> None:
    """Compare with transformers' model whose weights are those of the scheme already."""
    assert_same_as_modules(folder, reference, lambda name: rounding, **settings)


def assert_same_as_modules(
    folder: Path, reference: Any, rounding: Callable[[str], Rounding], **settings: Any
) -> None:
    """Compare with the same, whose inputs are rounded as `rounding` has it by module."""
    ids = some_ids()
    unrounded = expected(reference, ids)
    for name, module in reference.model.layers.named_modules():
        if hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, torch.nn.Parameter):
            of_expert = partial(_of_expert, rounding, name)
            module.forward = partial(experts_forward, module, of_expert)
        elif isinstance(module, torch.nn.Linear) and not f"{name}.weight".endswith(ROUTERS):
            module.forward = partial(product, module, rounding(name))  # type: ignore[method-assign]
    wanted = expected(reference, ids)
    model = load(folder, **settings)
    assert isinstance(model, Decoder)
    error, rounding_error = serve(model, ids) - wanted, wanted - unrounded
    assert (error.abs().amax(-1) < 1e-4).double().mean() > 0.5
    assert error.norm() < 0.2 * rounding_error.norm()
    assert rounding_error.abs().amax(-1).min() > 1e-3, "inputs are rounded, at each position"


def _of_expert(rounding: Callable[[str], Rounding], module: str, name: str) -> Rounding:
    return rounding(f"{module}.{name}")


def by_channel(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values, wide = rounded(weight, scale)
    return {"weight": values, "weight_scale": scale}, wide


@pytest.mark.parametrize("name", MODELS)
def test_rounded_at_load(name: str, tmp_path: Path) -> None:
    """Weights of tokens' products are rounded by channel, as a checkpoint by channel is."""
    reference = write_quantized_experts(tmp_path / "scheme", MODELS[name], {}, by_channel)
    write_tiny(MODELS[name], tmp_path / "model")
    assert_same_as_scheme(tmp_path / "model", reference, by_token, quantization="fp8")


def test_joined_experts_rounded_at_load(tmp_path: Path) -> None:
    model = hf.GptOssConfig(
        **WIDE,
        head_dim=16,
        num_local_experts=5,
        num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=11,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    reference = write_tiny(model, tmp_path)
    for layer in reference.model.layers:
        for name in ("gate_up_proj", "down_proj"):
            for weight in getattr(layer.mlp.experts, name).data:
                weight.copy_(by_channel("", weight.T)[1].T)
        for module in layer.self_attn.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data.copy_(by_channel("", module.weight.data)[1])
    assert_same_as_scheme(tmp_path, reference, by_token, quantization="fp8")


CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head", r"re:.*mlp\.gate$", r"re:.*block_sparse_moe\.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_by_channel(name: str, tmp_path: Path) -> None:
    reference = write_quantized_experts(tmp_path, MODELS[name], CHANNELS, by_channel)
    assert_same_as_scheme(tmp_path, reference, by_token)


def test_by_tensor(tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    reference = write_quantized_experts(tmp_path, MODELS["qwen3-moe"], config, by_tensor)
    assert_same_as_scheme(tmp_path, reference, by_token)


def test_by_blocks_as_qwen_publishes_them(tmp_path: Path) -> None:
    """Quantized and dequantized by transformers; routers are among the modules left out."""
    quantize, dequantize = Fp8Quantize(Quantizer()), Fp8Dequantize(Quantizer())

    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored = quantize.convert({"weight": weight})
        assert set(stored) == {"weight", "weight_scale_inv"}
        return stored, dequantize.convert(stored)["weight"]

    sizes = {**WIDE, "hidden_size": 256}
    model = hf.Qwen3MoeConfig(
        **sizes, **EXPERTS | {"moe_intermediate_size": 128}, head_dim=64, norm_topk_prob=True
    )
    left_out = ["lm_head"] + [f"model.layers.{index}.mlp.gate" for index in range(2)]
    config = BLOCKS | {"modules_to_not_convert": left_out}
    reference = write_quantized_experts(tmp_path, model, config, module)
    assert_same_as_scheme(tmp_path, reference, by_span)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_by_tensor_with_scales_of_inputs(name: str, tmp_path: Path) -> None:
    """As AutoFP8 writes Mixtral: each expert rounds its inputs by its own scale."""
    config = STATIC | {"modules_to_not_convert": ["gate"]}
    reference = write_quantized_experts(tmp_path, MODELS[name], config, with_input_scale)
    assert_same_as_modules(
        tmp_path, reference, lambda name: partial(scaled_by_tensor, input_scale(name))
    )


def test_another_scale_of_an_experts_inputs_is_noticed(tmp_path: Path) -> None:
    """The largest of all experts' scales, say."""
    reference = write_quantized_experts(tmp_path, MODELS["mixtral"], STATIC, with_input_scale)

    def largest(name: str) -> Rounding:
        return partial(scaled_by_tensor, 0.09 if ".experts." in name else input_scale(name))

    with pytest.raises(AssertionError):
        assert_same_as_modules(tmp_path, reference, largest)


def test_gate_and_up_of_different_scales_are_refused(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, wide = with_input_scale(name, weight)
        if name.endswith("experts.2.w3"):
            stored["input_scale"] *= 2
        return stored, wide

    write_quantized_experts(tmp_path, MODELS["mixtral"], STATIC, module)
    with pytest.raises(
        ModelError, match=r"safetensors: '.*2\.w3': gate and up .* different scales \(input_scale\)"
    ):
        load(tmp_path)


def test_experts_whose_inputs_have_a_bound_are_refused(tmp_path: Path) -> None:
    config = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1.5}
    write_quantized_experts(tmp_path, MODELS["mixtral"], config, by_channel)
    with pytest.raises(
        ModelError, match=r"safetensors: '.*experts\.0\.w2': experts whose inputs have a bound"
    ):
        load(tmp_path)


def test_experts_that_are_stored_in_two_ways_are_refused(tmp_path: Path) -> None:
    def module(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if ".experts.3." in name:
            return {"weight": weight}, weight
        return by_channel(name, weight)

    config = CHANNELS | {"ignore": [*CHANNELS["ignore"], r"re:.*experts\.3\."]}
    write_quantized_experts(tmp_path, MODELS["qwen3-moe"], config, module)
    with pytest.raises(ModelError, match=r"in different ways \(expert 3 is not as those before\)"):
        load(tmp_path)


def test_a_router_in_float8_is_dequantized(tmp_path: Path) -> None:
    model = MODELS["qwen3-moe"]
    config = CHANNELS | {"ignore": ["lm_head"]}
    reference = write_quantized_experts(tmp_path, model, config, by_channel)
    tensors = load_file(tmp_path / "model.safetensors")
    for index in range(2):
        name = f"model.layers.{index}.mlp.gate"
        stored, values = by_channel(name, tensors.pop(f"{name}.weight"))
        tensors |= {f"{name}.{key}": tensor for key, tensor in stored.items()}
        reference.get_submodule(name).weight.data.copy_(values)
    rewrite(tmp_path, tensors, None)
    assert_same_as_scheme(tmp_path, reference, by_token)
