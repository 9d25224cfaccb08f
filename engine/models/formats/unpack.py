"""Reads the tensors of one quantised module as the tool that wrote them lays them out.

    fp8         weight e4m3 [out, in]; weight_scale a number or [out, 1]; input_scale a number
    fp8-blocks  weight e4m3 [out, in]; weight_scale_inv [ceil(out / 128), ceil(in / 128)]
    gptq        qweight int32 [in / 8, out], inputs from the low nibble up; scales [groups, out];
                qzeros int32 [groups, out / 8], one less than meant in the first version; g_idx
                int32 [in], the group of each input
    awq         qweight int32 [in, out / 8]; nibble j is channel `AWQ_ORDER[j]` of its eight; scales
                and qzeros as gptq, the latter in awq's order and as meant
    packed      weight_packed int32 [out, in / 8]; weight_scale [out, groups]; weight_zero_point
                int32 [out / 8, groups]; numbers and zeros are stored with 8 added; until
                August 2026, for `actorder` "group", weight_g_idx as gptq's g_idx

Sources: `auto_gptq.nn_modules.qlinear`, AutoAWQ's `WQLinear_GEMM`, `compressed_tensors.compressors`
and `transformers.integrations.finegrained_fp8`.
"""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.kernels.fp8 import FP8, Fp8Rows
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.quantized.int4 import pack
from engine.models.formats.fp8 import Fp8Part
from engine.models.formats.fp8_blocks import BlockPart
from engine.models.formats.int4 import Int4Part
from engine.models.formats.part import Part
from engine.models.formats.scheme import Scheme
from engine.models.weights.finite import is_finite
from engine.models.weights.stored import StoredTensors

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The channel of each nibble."""

STORED = ("weight", "qweight", "weight_packed")
"""The names of a module's weight, of which it has one."""
SCALES = {
    "fp8": ("weight_scale", "weight_scale_inv"),
    "fp8-blocks": ("weight_scale_inv", "weight_scale"),
}
INPUT_SCALES = ("input_scale", "activation_scale")


class ModuleTensors:
    """The tensors of one module of a checkpoint, each checked against the shape it must have."""

    def __init__(
        self, source: StoredTensors, module: str, shape: tuple[int, int], device: torch.device
    ) -> None:
        self._source, self.module, self._device = source, module, device
        self.num_channels, self.width = shape

    def has(self, name: str) -> bool:
        return self._source.shape(f"{self.module}.{name}") is not None

    def read(self, name: str, *shapes: tuple[int, ...]) -> torch.Tensor:
        """Read a tensor as it is stored; raises `ModelError` unless it has one of the shapes."""
        if not self.has(name):
            raise self.missing(name)
        tensor = self._source.stored(f"{self.module}.{name}")
        if shapes and tuple(tensor.shape) not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(name, f"has shape {list(tensor.shape)}, the scheme asks for {wanted}")
        return tensor.to(self._device)

    def words(self, name: str, *shape: int) -> torch.Tensor:
        """Read packed nibbles: int32."""
        tensor = self.read(name, shape)
        if tensor.dtype != torch.int32:
            raise self.error(name, f"is {tensor.dtype}, the scheme asks for torch.int32")
        return tensor

    def scales(self, name: str, *shapes: tuple[int, ...]) -> torch.Tensor:
        """Read scales; raises `ModelError` unless all are finite numbers."""
        tensor = self.read(name, *shapes)
        tensor = tensor if tensor.dtype.itemsize > 1 else tensor.float()
        if not tensor.is_floating_point() or not is_finite(tensor):
            raise self.error(name, "holds scales that are not finite numbers")
        return tensor

    def first(self, names: tuple[str, ...]) -> str:
        """The first of some names that there is; raises `ModelError` if none is."""
        for name in names:
            if self.has(name):
                return name
        raise self.missing(names[0])

    def missing(self, name: str) -> ModelError:
        return self.error(name, "is missing, which quantization_config asks for")

    def error(self, name: str, words: str) -> ModelError:
        """What is wrong with a tensor, in the file where it or else the module's weight is."""
        there = next((each for each in (name, *STORED) if self.has(each)), name)
        return ModelError(
            f"{self._source.place(f'{self.module}.{there}')}: tensor '{self.module}.{name}' "
            f"{words}; write the checkpoint anew or give the unquantized model as MODEL"
        )


def unpack(scheme: Scheme, tensors: ModuleTensors) -> Part:
    """Read one module's weight.

    Raises:
        ModelError: a tensor is missing or is not what the scheme asks for.
    """
    if scheme.is_fp8:
        return _fp8(scheme, tensors)
    for name, size in (("in", tensors.width), ("out", tensors.num_channels)):
        if size % 8:
            raise tensors.error("weight", f"has {size} {name}puts, which 8 to a word do not divide")
    group = scheme.group or tensors.width
    if tensors.width % group:
        raise tensors.error("scales", f"cannot be in groups of {group} over {tensors.width} inputs")
    return {"gptq": _gptq, "awq": _awq, "packed": _packed}[scheme.storage](scheme, tensors, group)


def _fp8(scheme: Scheme, tensors: ModuleTensors) -> Part:
    n, k = tensors.num_channels, tensors.width
    values = tensors.read("weight", (n, k))
    if values.dtype != FP8:
        raise tensors.error("weight", f"is {values.dtype}, the scheme asks for {FP8}")
    name = tensors.first(SCALES[scheme.storage])
    if scheme.storage == "fp8-blocks":
        scales = tensors.scales(name, (-(-n // SPAN), -(-k // SPAN))).float()
        return BlockPart(Fp8Blocks(values, scales.repeat_interleave(SPAN, 0)[:n].contiguous()))
    scales = tensors.scales(name, (), (1,), (1, 1), (n,), (n, 1)).float().flatten().expand(n)
    fixed = None
    if scheme.inputs == "by tensor":
        fixed = float(tensors.scales(tensors.first(INPUT_SCALES), (), (1,), (1, 1)))
        if fixed <= 0:
            raise tensors.error(tensors.first(INPUT_SCALES), f"is {fixed}, and must be above 0")
    return Fp8Part(Fp8Rows(values, scales.contiguous()), fixed, scheme.largest_input)


def nibbles(words: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Unpack int32 [..., w] to uint8 [..., 8 * w]; nibble j of a word goes to place `order[j]`."""
    out = torch.empty((*words.shape, 8), dtype=torch.uint8, device=words.device)
    for nibble, place in enumerate(order):  # one by one: eight of them at once are 64 times a word
        out[..., place] = (words >> 4 * nibble) & 15
    return out.flatten(-2)


def _gptq(scheme: Scheme, tensors: ModuleTensors, group: int) -> Part:
    n, k = tensors.num_channels, tensors.width
    num_groups = k // group
    q = nibbles(tensors.words("qweight", k // 8, n).t().contiguous())
    zeros = nibbles(tensors.words("qzeros", num_groups, n // 8))
    zeros = (zeros + scheme.zero_offset) & 15
    scales = tensors.scales("scales", (num_groups, n))
    order = _order(tensors, "g_idx", group)
    if order is not None:
        q = q[:, order]
    return Int4Part(pack(q, scales.t(), zeros.t(), group), order)


def _order(tensors: ModuleTensors, name: str, group: int) -> torch.Tensor | None:
    """The inputs of a weight by their groups, int64 [in]; None where they are so already.

    A tool that leaves them in order may say -1 of all.
    """
    if not tensors.has(name):
        return None
    groups = tensors.read(name, (tensors.width,)).long()
    in_order = torch.arange(tensors.width, device=groups.device) // group
    if torch.equal(groups, in_order) or bool((groups == -1).all()):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], in_order):
        raise tensors.error(name, f"does not give each group {group} inputs")
    return order


def _awq(scheme: Scheme, tensors: ModuleTensors, group: int) -> Part:
    n, k = tensors.num_channels, tensors.width
    num_groups = k // group
    q = nibbles(tensors.words("qweight", k, n // 8), AWQ_ORDER)
    zeros = nibbles(tensors.words("qzeros", num_groups, n // 8), AWQ_ORDER)
    scales = tensors.scales("scales", (num_groups, n))
    return Int4Part(pack(q.t(), scales.t(), zeros.t(), group), None)


def _packed(scheme: Scheme, tensors: ModuleTensors, group: int) -> Part:
    n, k = tensors.num_channels, tensors.width
    num_groups = k // group
    q = nibbles(tensors.words("weight_packed", n, k // 8))
    scales = tensors.scales("weight_scale", (n, num_groups))
    zeros = None
    if scheme.has_zeros:
        zeros = nibbles(tensors.words("weight_zero_point", n // 8, num_groups).t().contiguous()).t()
    order = _order(tensors, "weight_g_idx", group)
    if order is not None:
        q = q[:, order]
    if tensors.has("weight_shape"):
        shape = tensors.read("weight_shape").tolist()
        if shape != [n, k]:
            raise tensors.error("weight_shape", f"says {shape}, the config {[n, k]}")
    return Int4Part(pack(q, scales, zeros, group), order)
