"""Reads experts in mxfp4 as gpt-oss publishes them.

    X_blocks  uint8 [experts, out, in / 32, 16], two inputs a byte, the first in the low nibble
    X_scales  uint8 [experts, out, in / 32], exponents of two with 127 added (e8m0)

What a nibble stands for is in `engine.kernels.experts.nibbles`.
"""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.kernels.experts.nibbles import MXFP4, MXFP4_GROUP
from engine.kernels.experts.weights import Int4Experts
from engine.kernels.quantized.int4 import Int4Groups, pack
from engine.models.checkpoint.weights import Checkpoint

EXPONENT_BIAS_AT = 23
"""The place of a float32's exponent, which has the same bias."""
NO_NUMBER = 255
"""The scale that is none."""


def read_mxfp4(
    source: Checkpoint, module: str, shape: tuple[int, int, int], device: torch.device
) -> Int4Experts:
    """Read all experts' weights [experts, out, in].

    Raises:
        ModelError: a tensor is missing, has another shape or type, or a scale is no number.
    """
    num_experts, _, width = shape
    if width % MXFP4_GROUP:
        raise ModelError(
            f"{source.place(f'{module}_blocks')}: tensor {module!r} has {width} inputs, which "
            f"{MXFP4_GROUP} of mxfp4 do not divide; give the unquantized model as MODEL"
        )
    num_groups = width // MXFP4_GROUP
    blocks = _bytes(source, f"{module}_blocks", (*shape[:2], num_groups, MXFP4_GROUP // 2))
    exponents = _bytes(source, f"{module}_scales", (*shape[:2], num_groups))
    if bool((exponents == NO_NUMBER).any()):
        raise ModelError(
            f"{source.place(f'{module}_scales')}: tensor '{module}_scales' holds scales that are "
            "no numbers; download the checkpoint anew"
        )
    packed = [_pack(*own, device) for own in zip(blocks, exponents, strict=True)]
    groups = packed[0]._replace(
        words=torch.cat([each.words for each in packed]),
        scales=torch.cat([each.scales for each in packed]),
    )
    return Int4Experts(groups, num_experts, MXFP4)


def _bytes(source: Checkpoint, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = source.stored(name)
    if tuple(tensor.shape) != shape or tensor.dtype != torch.uint8:
        raise ModelError(
            f"{source.place(name)}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, mxfp4 "
            f"asks for torch.uint8 {list(shape)}; download the checkpoint anew"
        )
    return tensor


def _pack(blocks: torch.Tensor, exponents: torch.Tensor, device: torch.device) -> Int4Groups:
    """Lay out one expert's blocks [out, groups, 16] and exponents [out, groups]."""
    blocks = blocks.to(device)
    q = torch.stack([blocks & 15, blocks >> 4], -1).flatten(1)
    scales = (exponents.to(device, torch.int32) << EXPONENT_BIAS_AT).view(torch.float32)
    return pack(q, scales.to(torch.bfloat16), None, MXFP4_GROUP)  # powers of two: exact
