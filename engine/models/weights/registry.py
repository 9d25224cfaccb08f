"""Notes where a model's weights are held while one reader reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from engine.contracts.named_weights import (
    NamedWeight,
    NamedWeights,
    Portion,
    ProductRows,
    TensorInfo,
    WeightUnit,
)
from engine.models.weights.given import GivenTensors
from engine.models.weights.stored import WeightSource
from sampling.device.ranks import RankExchange

FIXED = (".g_idx", ".weight_g_idx", ".weight_shape", ".input_scale", ".activation_scale")
"""Ends of the names of tensors that decide how a quantized module is laid out or compiled."""

Put = Callable[[WeightSource], None]
Get = Callable[[], Mapping[str, Portion]]
Written = Callable[[], Sequence[torch.Tensor]]


class WeightRegistry:
    """The units of a model, in the order in which they were read.

    Args:
        source: that they are read from.

    Attributes:
        is_kept: whether anything is to be noted: layers that are dropped again are not.
    """

    def __init__(
        self, source: WeightSource, exchange: RankExchange, *, is_kept: bool = True
    ) -> None:
        self._source, self._exchange, self.is_kept = source, exchange, is_kept
        self._of_base: dict[int, WeightUnit] = {}
        self._names: dict[str, WeightUnit] = {}

    def take(self) -> dict[str, TensorInfo]:
        """The tensors that were asked for since the last call, which a unit is to be noted of."""
        asked = dict(self._source.asked)
        self._source.asked.clear()
        return asked

    def note(
        self,
        tensors: Mapping[str, TensorInfo],
        put: Put,
        get: Get,
        written: Written,
        *,
        store: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]] = dict,
        rows: ProductRows | None = None,
        base: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> WeightUnit:
        """Note a unit.

        Args:
            put: reads it from a source of given tensors, and writes it in place.
            get, written, store, rows, dtype: as of `WeightUnit`.
            base: the tensor that holds it, of which others may be derived.
        """
        source = self._source
        unit = WeightUnit(
            tensors,
            lambda given: put(GivenTensors(given, source)),
            get,
            written,
            store,
            self._fixed(tensors),
            rows,
            self._exchange,
            dtype=dtype,
        )
        self._names |= dict.fromkeys(tensors, unit)
        if base is not None:
            self._of_base[id(base)] = unit
        return unit

    def hold(self, tensors: Mapping[str, TensorInfo]) -> None:
        """Note tensors that can only be written as they are."""
        checkpoint = self._source.checkpoint
        assert checkpoint is not None
        unit = self.note(tensors, lambda _: None, dict, list)
        unit.fixed = {name: checkpoint.stored(name).cpu() for name in tensors}
        self.take()

    def follow(self, base: torch.Tensor, then: Callable[[], None]) -> None:
        """Run `then` after a write of the tensor `base`, as it was read."""
        if self.is_kept:
            self._of_base[id(base)].followers.append(then)

    def named(self) -> NamedWeights:
        """All weights by their names in the checkpoint."""
        assert not self._source.asked, f"read and not noted: {list(self._source.asked)}"
        checkpoint, named = self._source.checkpoint, {}
        for own_name, unit in self._names.items():
            name = own_name if checkpoint is None else checkpoint.stored_name(own_name)
            named[name] = NamedWeight(name, unit, own_name)
        return NamedWeights(named, self._source.unread.has)

    def _fixed(self, tensors: Mapping[str, TensorInfo]) -> dict[str, torch.Tensor]:
        checkpoint = self._source.checkpoint
        if checkpoint is None:
            return {}
        fixed = {name: checkpoint.stored(name).cpu() for name in tensors if name.endswith(FIXED)}
        self.take()
        return fixed
