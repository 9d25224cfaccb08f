"""Reads the modules of a quantized checkpoint, and what they are without their quantization."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import torch

from engine.contracts.named_weights import TensorInfo
from engine.errors import ModelError
from engine.kernels.experts.nibbles import MXFP4_GROUP
from engine.kernels.quantized.fp8_blocks import SPAN
from engine.models.formats.dense import DensePart
from engine.models.formats.dummy import dummy_part
from engine.models.formats.modules import ModuleShape, PackedExperts, PlainModules, Storing
from engine.models.formats.mxfp4 import are_numbers, read_mxfp4
from engine.models.formats.part import Part
from engine.models.formats.repack import Held, dequantize, repack, repack_mxfp4
from engine.models.formats.scheme import Quantization, Scheme
from engine.models.formats.separate import join
from engine.models.formats.unpack import STORED, ModuleTensors, unpack
from engine.models.weights.shares import RANKS_FLAG
from engine.models.weights.stored import WeightSource

PLAIN = ("BF16", "F16", "F32")
"""How weights are stored that a tool left as they were."""


class QuantizedModules(PlainModules):
    """Modules of a quantized checkpoint.

    Args:
        num_ranks: by which weights are divided, for errors.

    Attributes:
        kept: weights as they were unpacked, by module, where `keeps` is set.
    """

    def __init__(
        self,
        quantization: Quantization,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        num_ranks: int = 1,
        *,
        invariant: bool = False,
    ) -> None:
        super().__init__(source, dtype, device, invariant=invariant)
        self.quantization = quantization
        self._num_ranks = num_ranks
        self.keeps = False
        self.kept: dict[str, Part] = {}

    def part(self, module: ModuleShape, channels: torch.Tensor | None = None) -> Part:
        if channels is not None:
            part = self._whole(module).channels(channels)
        elif self._scheme_of(module.name) is None:
            part = super().part(module)
        else:
            part = self._cut(module, self._whole(module))
        return self._noted(module.name, part)

    def part_by_groups(self, module: ModuleShape) -> tuple[Part, torch.Tensor | None]:
        if self._scheme_of(module.name) is None:
            return self.part(module), None
        whole, order = self._whole(module).in_group_order()
        if order is not None and module.own is not None:
            order = order[module.own.own[0]]
        return self._noted(module.name, self._cut(module, whole)), order

    def fused(self, modules: Sequence[ModuleShape]) -> Part:
        return join([self.part(module) for module in modules])

    def bias(self, module: ModuleShape, *, has_bias: bool) -> torch.Tensor | None:
        """Read a bias; tools of GPTQ write biases of zeros where a model has none."""
        is_there = self.source.shape(f"{module.name}.bias") is not None
        bias = super().bias(module, has_bias=has_bias or is_there)
        return bias if has_bias or (bias is not None and bool(bias.any())) else None

    def unquantized(self, module: ModuleShape) -> torch.Tensor:
        return self.part(module).dequantized().to(self.dtype)

    def expert_parts(self, experts: PackedExperts) -> Iterator[Part]:
        """Read experts of one tensor, which is in mxfp4."""
        checkpoint = self.source.checkpoint
        if checkpoint is None:
            raise ModelError(
                "config.json: quantization_config (mxfp4) has no random weights; leave it out with "
                "--load-format dummy"
            )
        name, count, (outputs,), inputs, _ = experts
        parts = read_mxfp4(checkpoint, name, count, outputs, inputs, self.device)
        for index, part in enumerate(parts):
            yield self._noted(f"{name}.{index}", experts.ordered(part))

    def over(self, source: WeightSource) -> Self:
        modules = super().over(source)
        modules.keeps = False
        return modules

    def storing(self, module: ModuleShape, tensors: Mapping[str, TensorInfo]) -> Storing:
        scheme, width = self._scheme_of(module.name), module.whole[1]
        checkpoint = self.source.checkpoint
        if scheme is None:
            return self.storing_rounded(module)
        size = SPAN if scheme.is_fp8 else scheme.group or width
        order = next((name for name in tensors if name.endswith("g_idx")), None)
        given = None if order is None or checkpoint is None else checkpoint.stored(order).long()
        if given is None or bool((given < 0).any()):
            given = None

        def groups() -> torch.Tensor:
            return torch.arange(width) // size if given is None else given

        def store(held: Held) -> dict[str, torch.Tensor]:
            if checkpoint is None:
                return {f"{module.name}.weight": dequantize(held, groups()).to(self.dtype)}
            stored = repack(scheme, held)
            return {
                name: _as_many(stored[end], info)
                for name, info in tensors.items()
                if (end := name.removeprefix(f"{module.name}.")) in stored
            }

        return Storing(groups, store)

    def storing_experts(
        self, experts: PackedExperts, tensors: Mapping[str, TensorInfo], *, is_transposed: bool
    ) -> Storing:
        if experts.name in tensors:
            return super().storing_experts(experts, tensors, is_transposed=is_transposed)
        groups = torch.arange(experts.inputs.whole) // MXFP4_GROUP

        def store(held: Held) -> dict[str, torch.Tensor]:
            blocks, exponents = repack_mxfp4(held)
            return {f"{experts.name}_blocks": blocks, f"{experts.name}_scales": exponents}

        return Storing(lambda: groups, store, {f"{experts.name}_scales": are_numbers})

    def as_unquantized(self) -> PlainModules:
        """Make the reader of what this one reads from now on, without its quantization."""
        self.keeps = True
        return DequantizedModules(self)

    def _noted(self, name: str, part: Part) -> Part:
        if self.keeps:
            self.kept[name] = part
        return part

    def _whole(self, module: ModuleShape) -> Part:
        """Unpack the whole of a weight."""
        scheme = self._scheme_of(module.name)
        checkpoint = self.source.checkpoint
        if scheme is not None and checkpoint is not None:
            tensors = ModuleTensors(checkpoint, module.name, module.whole, self.device)
            return unpack(scheme, tensors)
        weight = self.read(f"{module.name}.weight", module.whole)
        return DensePart(weight) if scheme is None else dummy_part(scheme, weight)

    def _cut(self, module: ModuleShape, whole: Part) -> Part:
        """A rank's part of a weight, with the scales that the whole has."""
        own = module.own
        if own is None:
            return whole
        if own.dim == 0:
            ranges = [torch.arange(each.start, each.stop, device=self.device) for each in own.own]
            return whole.channels(torch.cat(ranges))
        (inputs,) = own.own
        try:
            return whole.inputs(inputs)
        except ValueError as error:
            raise ModelError(
                f"{RANKS_FLAG} {self._num_ranks}: the quantized weights of {module.name!r} are not "
                f"divided: {error}; give the unquantized model as MODEL"
            ) from error

    def _scheme_of(self, module: str) -> Scheme | None:
        """The scheme by which a module's weight is stored; None: as it was."""
        checkpoint = self.source.checkpoint
        if checkpoint is None:
            return self.quantization.scheme_of(module)
        scheme = self.quantization.scheme_of(checkpoint.stored_module(module))
        name = self._stored_name(module)
        stored = name
        if name == "weight":
            stored = checkpoint.stored_type(f"{module}.weight")
        if stored in PLAIN or (stored is None and scheme is None):
            return None
        if scheme is None:
            raise ModelError(
                f"{checkpoint.place(f'{module}.{name}')}: the weight of {module!r} is stored as "
                f"{stored}, and quantization_config says that it is not quantized; correct the "
                "lists of modules in config.json"
            )
        return scheme

    def place(self, module: str) -> str:
        checkpoint = self.source.checkpoint
        if checkpoint is None:
            return f"config.json: {module}"
        return f"{checkpoint.place(f'{module}.{self._stored_name(module)}')}: {module!r}"

    def _stored_name(self, module: str) -> str | None:
        """The name of a module's weight, see `STORED`; None where there is none."""
        source = self.source
        return next((n for n in STORED if source.shape(f"{module}.{n}") is not None), None)


def _as_many(values: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """One of equal scales, where a tensor has one for all channels."""
    return values[:1] if math.prod(info.shape) == 1 else values


class DequantizedModules(PlainModules):
    """Gives the weights that other modules have kept, each once, without their quantization."""

    def __init__(self, modules: QuantizedModules) -> None:
        super().__init__(modules.source, modules.dtype, modules.device)
        self._modules = modules

    def part(self, module: ModuleShape, channels: torch.Tensor | None = None) -> Part:
        return DensePart(self._dense(module.name))

    def fused(self, modules: Sequence[ModuleShape]) -> Part:
        return join([self.part(module) for module in modules])

    def bias(self, module: ModuleShape, *, has_bias: bool) -> torch.Tensor | None:
        return self._modules.bias(module, has_bias=has_bias)

    def unquantized(self, module: ModuleShape) -> torch.Tensor:
        return self._dense(module.name)

    def expert_parts(self, experts: PackedExperts) -> Iterator[Part]:
        for index in range(experts.num_experts):
            yield DensePart(self._dense(f"{experts.name}.{index}"))

    def place(self, module: str) -> str:
        return self._modules.place(module)

    def _dense(self, name: str) -> torch.Tensor:
        return self._modules.kept.pop(name).dequantized().to(self.dtype)
