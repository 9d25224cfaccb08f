"""What float8 checkpoints stand for, in numpy and float64, and a comparison with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import FineGrainedFP8Config

from engine.models.decoder import Decoder
from tests.engine.models.formats.packers import Tensors
from tests.engine.models.serving import expected, load, serve, some_ids

FP8 = torch.float8_e4m3fn
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
Rounding = Callable[[torch.Tensor], torch.Tensor]


def e4m3(scaled: torch.Tensor) -> torch.Tensor:
    """Numbers rounded to e4m3, by numpy alone, in float64."""
    values = scaled.double().numpy(force=True)
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(values), 1e-30))), -6.0)
    step = 2.0 ** (exponent - 3.0)
    return torch.from_numpy(np.clip(np.round(values / step) * step, -448, 448))


def by_token(x: torch.Tensor, largest: float | None = None) -> torch.Tensor:
    x = x.float() if largest is None else x.float().clamp(-largest, largest)
    scale = x.abs().amax(-1, keepdim=True) / 448.0
    return e4m3(x / scale) * scale.double()


def by_span(x: torch.Tensor) -> torch.Tensor:
    parts = [by_token(part) for part in torch.split(x, 128, dim=-1)]
    return torch.cat(parts, dim=-1)


def by_tensor(scale: float, x: torch.Tensor) -> torch.Tensor:
    return e4m3(x.float() / scale) * float(np.float32(scale))


def product(module: torch.nn.Linear, rounding: Rounding, x: torch.Tensor) -> torch.Tensor:
    out = rounding(x) @ module.weight.double().T
    return (out if module.bias is None else out + module.bias.double()).to(x.dtype)


def rounded(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight in float8, and its values; scale [] or [out, 1]."""
    values = (weight / scale).to(FP8)
    return values, values.float() * scale


def by_blocks(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A weight in float8 by blocks of 128 by 128, as it is stored, and its values."""
    n, k = weight.shape
    scales = torch.zeros(-(-n // 128), -(-k // 128))
    values, wide = torch.zeros(n, k, dtype=torch.uint8), torch.zeros(n, k)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scales[i, j] = weight[block].abs().amax() / 448
            part, wide[block] = rounded(weight[block], scales[i, j])
            values[block] = part.view(torch.uint8)
    return {"weight": values.view(FP8), "weight_scale_inv": scales}, wide


def assert_same_as_scheme(
    folder: Path, reference: Any, rounding: Callable[[str], Rounding]
) -> None:
    """Compare with transformers' model whose inputs are rounded as `rounding` has it by module."""
    ids = some_ids()
    unrounded = expected(reference, ids)
    for name, module in reference.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = partial(product, module, rounding(name))  # type: ignore[method-assign]
    wanted = expected(reference, ids)
    model = load(folder)
    assert isinstance(model, Decoder)
    error, rounding_error = serve(model, ids) - wanted, wanted - unrounded
    assert (error.abs().amax(-1) < 1e-4).double().mean() > 0.5
    assert error.norm() < 0.2 * rounding_error.norm()
    assert rounding_error.abs().amax(-1).min() > 1e-3, "inputs are rounded, at each position"


class Quantizer:
    """What transformers' conversions ask of the quantizer they belong to."""

    quantization_config = FineGrainedFP8Config()
