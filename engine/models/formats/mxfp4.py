"""Reads experts in mxfp4 as gpt-oss publishes them.

    X_blocks  uint8 [experts, out, in / 32, 16], two inputs a byte, the first in the low nibble
    X_scales  uint8 [experts, out, in / 32], exponents of two with 127 added (e8m0)

What a nibble means is in `engine.kernels.experts.nibbles`.
"""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.kernels.experts.nibbles import MXFP4, MXFP4_GROUP
from engine.kernels.quantized.int4 import Int4Groups, pack
from engine.models.formats.int4 import Int4Part
from engine.models.weights.shares import OwnedPart, RankShare
from engine.models.weights.sources import ANEW
from engine.models.weights.stored import StoredTensors, fill

EXPONENT_BIAS_AT = 23
"""The place of a float32's exponent, which has the same bias."""
NO_NUMBER = 255
"""The scale that is none."""


def read_mxfp4(
    source: StoredTensors,
    module: str,
    num_experts: int,
    outputs: RankShare,
    inputs: RankShare,
    device: torch.device,
) -> list[Int4Part]:
    """Read the weights [out, in] of all experts.

    Raises:
        ModelError: a tensor is missing, has another shape or type, or a scale is no number.
    """
    if inputs.whole % MXFP4_GROUP:
        raise ModelError(
            f"{source.place(f'{module}_blocks')}: tensor {module!r} has {inputs.whole} inputs, "
            f"which {MXFP4_GROUP} of mxfp4 do not divide; give the unquantized model as MODEL"
        )
    groups = inputs.per(MXFP4_GROUP)
    own = OwnedPart.of(2, (groups,)) or OwnedPart.of(1, (outputs,))
    shape = (num_experts, outputs.length, groups.length)
    blocks = torch.empty((*shape, MXFP4_GROUP // 2), dtype=torch.uint8)
    exponents = torch.empty(shape, dtype=torch.uint8)
    for name, target in ((f"{module}_blocks", blocks), (f"{module}_scales", exponents)):
        _check_type(source, name)
        fill(source, target, name, own)
    if not are_numbers(exponents):
        raise ModelError(
            f"{source.place(f'{module}_scales')}: tensor '{module}_scales' holds scales that are "
            f"no numbers; {ANEW}"
        )
    pairs = zip(blocks, exponents, strict=True)
    return [Int4Part(_pack(*each, device), code=MXFP4) for each in pairs]


def are_numbers(exponents: torch.Tensor) -> bool:
    """Whether all scales are numbers."""
    return not bool((exponents == NO_NUMBER).any())


def _check_type(source: StoredTensors, name: str) -> None:
    if source.shape(name) is not None and (kind := source.stored_type(name)) != "U8":
        raise ModelError(
            f"{source.place(name)}: tensor {name!r} is stored as {kind}, mxfp4 asks for U8; {ANEW}"
        )


def _pack(blocks: torch.Tensor, exponents: torch.Tensor, device: torch.device) -> Int4Groups:
    """Lay out one expert's blocks [out, groups, 16] and exponents [out, groups]."""
    blocks = blocks.to(device)
    q = torch.stack([blocks & 15, blocks >> 4], -1).flatten(1)
    scales = (exponents.to(device, torch.int32) << EXPONENT_BIAS_AT).view(torch.float32)
    return pack(q, scales.to(torch.bfloat16), None, MXFP4_GROUP)  # powers of two: exact
