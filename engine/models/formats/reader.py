"""Reads the products of a quantised checkpoint, and what they are without their quantisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from engine.errors import ModelError
from engine.kernels.experts.weights import Int4Experts
from engine.models.formats.dummy import dummy_part
from engine.models.formats.mxfp4 import read_mxfp4
from engine.models.formats.parts import (
    DensePart,
    Int4Part,
    Part,
    SeparateParts,
    join,
)
from engine.models.formats.scheme import Quantization, Scheme
from engine.models.formats.unpack import STORED, ModuleTensors, unpack
from engine.models.weights.sources import Checkpoint, WeightSource

PLAIN = ("BF16", "F16", "F32")
"""How weights are stored that a tool left as they were."""


class OwnedPart(NamedTuple):
    """Which part of a tensor is one rank's.

    Attributes:
        dim: the dimension that is divided. whole: its length in the whole tensor.
        own: what of it is the rank's, in order.
    """

    dim: int
    whole: int
    own: tuple[slice, ...]

    def slices(self) -> Iterator[tuple[slice, ...]]:
        """The slices of the tensor's dimensions, for each of `own`."""
        for each in self.own:
            yield (*[slice(None)] * self.dim, each)


class Shards(Protocol):
    """How ranks divide a checkpoint's tensors.

    Attributes:
        size: how many ranks there are.
    """

    size: int

    def part(self, name: str, shape: Sequence[int]) -> OwnedPart | None:
        """Which part of a tensor is this rank's, whose part has a shape; None: all of it."""
        ...

    def fill(self, target: torch.Tensor, name: str) -> None:
        """Write this rank's part of a tensor that is stored as it is."""
        ...


class QuantizedReader:
    """The source of a quantised checkpoint's products.

    Args:
        dtype: of the tensors that are not quantised.

    Attributes:
        kept: weights as they were unpacked, by module, where `keeps` is set.
        shards: gives the parts of one rank; None where one rank has all. Sizes that are asked for
            are those of the part.
    """

    def __init__(
        self,
        quantization: Quantization,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.quantization = quantization
        self._source, self._dtype, self._device = source, dtype, device
        self.shards: Shards | None = None
        self.keeps = False
        self.kept: dict[str, Part] = {}
        self.kept_experts: dict[str, Int4Experts] = {}

    def read(
        self, prefix: str, widths: dict[str, int], fan_in: int, has_bias: bool
    ) -> tuple[Part, torch.Tensor | None]:
        """Read projections of the same input as one product's weight and bias.

        Args:
            prefix: of the modules' names. widths: the outputs of each module, in order.

        Raises:
            ModelError: a tensor is missing, or is not what the scheme asks for.
        """
        parts, biases = [], []
        for name, width in widths.items():
            module = f"{prefix}.{name}"
            parts.append(self.part(module, width, fan_in))
            biases.append(self._bias(module, width, has_bias))
        bias = torch.cat(biases)
        # Tools of GPTQ write biases of zeros where a model has none.
        return join(parts), bias if has_bias or bool(bias.any()) else None

    def part(
        self, module: str, num_channels: int, width: int, channels: torch.Tensor | None = None
    ) -> Part:
        """Read the weight of one module.

        Args:
            channels: those of the whole weight that are read, int64 [num_channels], in order; None
                are all, or a rank's.
        """
        shape = (num_channels, width)
        own = self._own(module, shape)
        part: Part
        if channels is not None:
            part = self._whole(module, shape, own).channels(channels)
        elif own is not None and self._scheme_of(module) is None:
            part = DensePart(self._fill(f"{module}.weight", shape, self.shards))
        else:
            part = self._divided(module, self._whole(module, shape, own), own)
        return self._noted(module, part)

    def part_by_groups(
        self, module: str, num_channels: int, width: int
    ) -> tuple[Part, torch.Tensor | None]:
        """Read the weight of one module with its inputs in the order of their groups (`desc_act`).

        A rank's are then whole groups.

        Returns:
            The weight, and its inputs in the whole weight, int64 [width]; None where they are as of
            `part`.
        """
        shape = (num_channels, width)
        own = self._own(module, shape)
        if self._scheme_of(module) is None:
            return self.part(module, num_channels, width), None
        whole, order = self._whole(module, shape, own), None
        if isinstance(whole, Int4Part) and whole.order is not None:
            order = whole.order if own is None else whole.order[own.own[0]]
            whole = whole._replace(order=None)
        return self._noted(module, self._divided(module, whole, own)), order

    def dequantized(self) -> DequantizedReader:
        """Make the reader of what this one reads from now on, without its quantisation."""
        self.keeps = True
        return DequantizedReader(self)

    def experts(self, module: str, shape: tuple[int, int, int]) -> torch.Tensor | Int4Experts:
        """Read all experts' weights [experts, out, in] of one tensor, which is in mxfp4.

        Raises:
            ModelError: a tensor is missing, or is not what the format asks for.
        """
        if not isinstance(self._source, Checkpoint):
            raise ModelError(
                "config.json: quantization_config (mxfp4) has no random weights; leave it out with "
                "--load-format dummy"
            )
        fill = (self.shards or self._source).fill
        weights = read_mxfp4(self._source, fill, module, shape, self._device)
        if self.keeps:
            self.kept_experts[module] = weights
        return weights

    def _own(self, module: str, shape: tuple[int, int]) -> OwnedPart | None:
        return None if self.shards is None else self.shards.part(f"{module}.weight", shape)

    def _noted(self, module: str, part: Part) -> Part:
        if self.keeps:
            self.kept[module] = part
        return part

    def _whole(self, module: str, shape: tuple[int, int], own: OwnedPart | None) -> Part:
        """Unpack the whole of a weight, of which a rank's part has a shape."""
        num_channels, width = shape
        if own is not None and own.dim == 0:
            num_channels = own.whole
        elif own is not None:
            width = own.whole
        return self._unpacked(module, (num_channels, width))

    def _divided(self, module: str, whole: Part, own: OwnedPart | None) -> Part:
        """A rank's part of a weight, with the scales that the whole has."""
        if own is None:
            return whole
        assert not isinstance(whole, SeparateParts), "one module is one part"
        assert self.shards is not None
        if own.dim == 0:
            ranges = [torch.arange(each.start, each.stop, device=self._device) for each in own.own]
            return whole.channels(torch.cat(ranges))
        (inputs,) = own.own
        try:
            return whole.inputs(inputs)
        except ValueError as error:
            raise ModelError(
                f"--tensor-parallel-size {self.shards.size}: the quantized weights of {module!r} "
                f"are not divided: {error}; give the unquantized model as MODEL"
            ) from error

    def _unpacked(self, module: str, shape: tuple[int, int]) -> Part:
        scheme = self._scheme_of(module)
        if scheme is None:
            return DensePart(self._fill(f"{module}.weight", shape))
        if isinstance(self._source, Checkpoint):
            return unpack(scheme, ModuleTensors(self._source, module, shape, self._device))
        return dummy_part(scheme, self._fill(f"{module}.weight", shape))

    def _scheme_of(self, module: str) -> Scheme | None:
        """The scheme by which a module's weight is stored; None: as it was."""
        scheme = self.quantization.scheme_of(module)
        if not isinstance(self._source, Checkpoint):
            return scheme
        name = self._stored_name(module)
        stored = name
        if name == "weight":
            stored = self._source.stored_type(f"{module}.weight")
        if stored in PLAIN or (stored is None and scheme is None):
            return None
        if scheme is None:
            raise ModelError(
                f"{self._source.place(f'{module}.{name}')}: the weight of {module!r} is stored as "
                f"{stored}, and quantization_config says that it is not quantized; correct the "
                "lists of modules in config.json"
            )
        return scheme

    def place(self, module: str) -> str:
        """A module's name for errors, behind the file of its weight where there is one."""
        if not isinstance(self._source, Checkpoint):
            return f"config.json: {module}"
        return f"{self._source.place(f'{module}.{self._stored_name(module)}')}: {module!r}"

    def _stored_name(self, module: str) -> str | None:
        """The name of a module's weight, see `STORED`; None where there is none."""
        source = self._source
        return next((n for n in STORED if source.shape(f"{module}.{n}") is not None), None)

    def _bias(self, module: str, width: int, has_bias: bool) -> torch.Tensor:
        name = f"{module}.bias"
        if has_bias or self._source.shape(name) is not None:
            return self._fill(name, (width,), self.shards)
        return torch.zeros(width, dtype=self._dtype, device=self._device)

    def _fill(
        self, name: str, shape: tuple[int, ...], source: WeightSource | Shards | None = None
    ) -> torch.Tensor:
        target = torch.empty(shape, dtype=self._dtype, device=self._device)
        (source or self._source).fill(target, name)
        return target


class DequantizedReader(QuantizedReader):
    """Gives the products that another reader has kept, each once, without their quantisation."""

    def __init__(self, reader: QuantizedReader) -> None:
        super().__init__(reader.quantization, reader._source, reader._dtype, reader._device)
        self._reader = reader

    def part(
        self, module: str, num_channels: int, width: int, channels: torch.Tensor | None = None
    ) -> Part:
        """The weight of one module [num_channels, width] in the model's dtype, as it was read."""
        kept = self._reader.kept.pop(module)
        return DensePart(kept.dequantized().to(self._dtype))

    def part_by_groups(
        self, module: str, num_channels: int, width: int
    ) -> tuple[Part, torch.Tensor | None]:
        """Give a weight as it was read: in that order, as the products before it."""
        return self.part(module, num_channels, width), None

    def experts(self, module: str, shape: tuple[int, int, int]) -> torch.Tensor:
        """All experts' weights [experts, out, in] in the model's dtype."""
        kept = self._reader.kept_experts.pop(module)
        weights = torch.empty(shape, dtype=self._dtype, device=self._device)
        for expert, weight in enumerate(weights):
            weight.copy_(kept.of(expert))
        return weights
