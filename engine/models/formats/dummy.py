"""Random weights as a quantised checkpoint would have them, for `--load-format dummy`."""

from __future__ import annotations

import torch

from engine.kernels.fp8 import quantize_rows
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.quantized.int4 import MIDDLE, pack
from engine.models.formats.fp8 import Fp8Part
from engine.models.formats.fp8_blocks import BlockPart
from engine.models.formats.int4 import Int4Part
from engine.models.formats.part import Part
from engine.models.formats.scheme import Scheme


def dummy_part(scheme: Scheme, weight: torch.Tensor) -> Part:
    """Quantise random weights by a scheme, rounding each number to the nearest."""
    if scheme.storage == "fp8":
        scale = 1.0 if scheme.inputs == "by tensor" else None
        return Fp8Part(quantize_rows(weight), scale, scheme.largest_input)
    n, k = weight.shape
    if scheme.storage == "fp8-blocks":
        padded = torch.zeros(-(-n // SPAN) * SPAN, -(-k // SPAN) * SPAN, device=weight.device)
        padded[:n, :k] = weight
        blocks = padded.view(-1, SPAN, padded.shape[1] // SPAN, SPAN).transpose(1, 2)
        rows = quantize_rows(blocks.reshape(-1, SPAN * SPAN))
        values = rows.values.view(torch.uint8).view(*blocks.shape).transpose(1, 2)
        values = values.reshape(padded.shape)[:n, :k].contiguous().view(rows.values.dtype)
        scales = rows.scales.view(-1, padded.shape[1] // SPAN).repeat_interleave(SPAN, 0)[:n]
        return BlockPart(Fp8Blocks(values, scales.contiguous()))
    group = scheme.group or k
    wide = weight.float().view(n, -1, group)
    scales = wide.abs().amax(-1).clamp(min=1e-12) / (MIDDLE - 1)
    q = (wide / scales[..., None]).round().add(MIDDLE).to(torch.uint8).view(n, k)
    return Int4Part(pack(q, scales.to(weight.dtype), None, group))
