"""A model's weights by their names in the checkpoint: where each is held, and how it is rewritten.

A model holds weights in other forms than a checkpoint has them: products of one input are joined,
their outputs reordered, numbers rounded or packed, and of several ranks each has a part. A
`WeightUnit` is the least that can be written at once: one tensor, or those of one quantized module,
which are packed together. Writes are in place, so that captured graphs and compiled products read
the new numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from sampling.device.ranks import LoneRank, RankExchange

PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types that one can be given in place of another: numbers are rounded to the model's."""


class WeightError(Exception):
    """A tensor that cannot be a weight; the model is as it was.

    Attributes:
        code: "wrong_shape", "wrong_dtype", "not_finite" or "fixed_weight".
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class TensorInfo(NamedTuple):
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Portion(NamedTuple):
    """What this rank has of a tensor.

    Attributes:
        values: in the order of `places`.
        shape: of the whole tensor.
        places: of each leading dimension the indices int64 in the whole tensor, on the host; None
            is all of them. Where ranks have all, rank 0's numbers count.
    """

    values: torch.Tensor
    shape: tuple[int, ...]
    places: tuple[torch.Tensor | None, ...] = ()

    def on_host(self) -> Portion:
        """The same on the host, where `whole` of several ranks takes no memory of a GPU."""
        return self._replace(values=self.values.cpu())

    def whole(self, exchange: RankExchange) -> torch.Tensor:
        """The tensor, from the parts of all ranks, which call it alike."""
        values = (self if exchange.size == 1 else self.on_host()).values  # as long as they may be
        if all(place is None for place in self.places):
            if exchange.size > 1:  # a sum's bias is rank 0's alone
                values = exchange.all_gather(values.contiguous())[0]
            return values.reshape(self.shape)
        whole = torch.empty(self.shape, dtype=values.dtype, device=values.device)
        for places, part in self._parts(values, exchange):
            _as_words(whole)[_index(places, self.shape, values.device)] = _as_words(part)
        return whole

    def _parts(
        self, values: torch.Tensor, exchange: RankExchange
    ) -> Sequence[tuple[tuple[torch.Tensor | None, ...], torch.Tensor]]:
        """Every rank's places and values."""
        if exchange.size == 1:
            return [(self.places, values)]
        lengths = exchange.all_gather(torch.tensor(values.shape)).tolist()
        most = [max(each) for each in zip(*lengths, strict=True)]
        padded = _as_words(values).new_zeros(most)
        padded[tuple(slice(n) for n in values.shape)] = _as_words(values)
        gathered = exchange.all_gather(padded)
        places = [_gather_places(place, exchange) for place in self.places]
        parts = []
        for rank, length in enumerate(lengths):
            own = tuple(None if each is None else each[rank] for each in places)
            parts.append((own, gathered[rank][tuple(slice(n) for n in length)]))
        return parts


def _gather_places(place: torch.Tensor | None, exchange: RankExchange) -> list[torch.Tensor] | None:
    if place is None:
        return None
    counts = exchange.all_gather(torch.tensor([len(place)])).flatten().tolist()
    padded = torch.zeros(max(counts), dtype=torch.int64)
    padded[: len(place)] = place
    gathered = exchange.all_gather(padded)
    return [gathered[rank, :count] for rank, count in enumerate(counts)]


def _index(
    places: tuple[torch.Tensor | None, ...], shape: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Indices of the leading dimensions that together name a block."""
    index = []
    for dim, place in enumerate(places):
        own = torch.arange(shape[dim]) if place is None else place
        index.append(own.to(device).view(-1, *[1] * (len(places) - dim - 1)))
    return tuple(index)


def _stored_as(values: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """A tensor in the type and shape of the checkpoint."""
    return values.to(info.dtype).reshape(info.shape)


def _as_words(values: torch.Tensor) -> torch.Tensor:
    """Float8 numbers as bytes, which can be indexed everywhere."""
    is_byte = values.dtype.itemsize == 1 and values.dtype.is_floating_point
    return values.view(torch.uint8) if is_byte else values


class HoldingProduct(Protocol):
    """The product that multiplies by a weight; `engine.models.formats.part.WeightProduct`."""

    linear: Callable[[torch.Tensor], torch.Tensor]


class ProductRows(NamedTuple):
    """The outputs of a product that a module's weight makes.

    Attributes:
        rows: among the product's outputs.
        outputs: int64, the module's output of each, in the whole module. inputs: the same of the
            rank's inputs; None is all, in order.
    """

    product: HoldingProduct
    rows: slice
    outputs: torch.Tensor | None
    inputs: torch.Tensor | None


@dataclass(eq=False)
class WeightUnit:
    """Tensors of a checkpoint that are held and written together.

    Attributes:
        tensors: what the checkpoint has, by name.
        put: writes all of them, each whole, in place.
        get: this rank's part of what `store` takes.
        store: makes the checkpoint's tensors, but for those of `fixed`, of what is held.
        fixed: tensors that decide how the others are laid out or are part of compiled products:
            they can only be written as they are.
        rows: of the product that multiplies by it; None where none does.
        written: the tensors that `put` writes, all of each.
        followers: what is derived from it and computed anew after a write.
        dtype: that numbers are rounded to first of all; None: they are held as they come.
        are_numbers: of tensors whose bytes stand for numbers, whether all of them stand for one;
            `put` takes no others.
    """

    tensors: Mapping[str, TensorInfo]
    put: Callable[[Mapping[str, torch.Tensor]], None]
    get: Callable[[], Mapping[str, Portion]]
    written: Callable[[], Sequence[torch.Tensor]]
    store: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]] = dict
    fixed: Mapping[str, torch.Tensor] = field(default_factory=dict)
    rows: ProductRows | None = None
    exchange: RankExchange = field(default_factory=LoneRank)
    followers: list[Callable[[], object]] = field(default_factory=list)
    dtype: torch.dtype | None = None
    are_numbers: Mapping[str, Callable[[torch.Tensor], bool]] = field(default_factory=dict)

    def check(self, name: str, info: TensorInfo) -> None:
        """Refuse a tensor of another shape or kind than the checkpoint's; raises `WeightError`."""
        wanted = self.tensors[name]
        if info.shape != wanted.shape:
            raise WeightError(
                f"weight {name!r} has shape {list(info.shape)}, the model's has "
                f"{list(wanted.shape)}",
                "wrong_shape",
            )
        are_plain = info.dtype in PLAIN_DTYPES and wanted.dtype in PLAIN_DTYPES
        if info.dtype != wanted.dtype and not are_plain:
            kind, own = (str(d).removeprefix("torch.") for d in (info.dtype, wanted.dtype))
            raise WeightError(f"weight {name!r} is {kind}, the model's is {own}", "wrong_dtype")

    def check_values(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse new numbers of a fixed tensor, and what means none; raises `WeightError`."""
        held = self.fixed.get(name)
        if held is not None and not torch.equal(_as_words(held), _as_words(tensor.cpu())):
            raise WeightError(
                f"weight {name!r} decides how others are laid out and cannot change while the "
                "model is served; start the server with the new model",
                "fixed_weight",
            )
        if name in self.are_numbers and not self.are_numbers[name](tensor):
            raise WeightError(f"weight {name!r} holds scales that are no numbers", "not_finite")

    def write(self, given: Mapping[str, torch.Tensor]) -> None:
        """Write tensors, each whole; those that are not given stay as they are.

        All ranks give tensors of the same names.

        Raises:
            WeightError: one has another shape, type or layout; nothing was written.
        """
        for name, tensor in given.items():
            self.check(name, TensorInfo(tuple(tensor.shape), tensor.dtype))
            self.check_values(name, tensor)
        missing = self.tensors.keys() - given.keys()
        with torch.no_grad():
            held = self.read() if missing else {}
            self.put({**held, **given})
            for follow in self.followers:
                follow()

    def read(self) -> dict[str, torch.Tensor]:
        """All tensors as the checkpoint has them; of several ranks, all call it alike."""
        return self.stored({name: each.whole(self.exchange) for name, each in self.get().items()})

    def stored(self, whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All tensors as the checkpoint has them, of those that `get` has this rank's part of."""
        held = self.store(whole)
        return {
            name: self.fixed[name] if name in self.fixed else _stored_as(held[name], info)
            for name, info in self.tensors.items()
        }


@dataclass(frozen=True, eq=False)
class NamedWeight:
    """A tensor of the checkpoint, as the model holds it.

    Attributes:
        name: in the checkpoint.
        own_name: of it in `unit`, where the model's names are not the checkpoint's.
    """

    name: str
    unit: WeightUnit
    own_name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self.unit.tensors[self.own_name].shape

    @property
    def dtype(self) -> torch.dtype:
        """The type in the checkpoint; the model may hold it in another."""
        return self.unit.tensors[self.own_name].dtype

    @property
    def rows(self) -> ProductRows | None:
        """The outputs of the product that multiplies by it; None where none does."""
        return self.unit.rows

    def read(self) -> torch.Tensor:
        """The whole tensor as the checkpoint would have it; of several ranks, all call it alike.

        What was rounded while it was read is given as rounded.
        """
        return self.unit.read()[self.own_name]

    def write(self, tensor: torch.Tensor) -> None:
        """Write the whole tensor in place; see `WeightUnit.write`."""
        self.unit.write({self.own_name: tensor})


class NamedWeights(dict[str, NamedWeight]):
    """Weights by their names in the checkpoint.

    Attributes:
        passes_over: whether a checkpoint may have a tensor of a name that is not loaded.
    """

    def __init__(
        self,
        named: Mapping[str, NamedWeight] | None = None,
        passes_over: Callable[[str], bool] = lambda _: False,
    ) -> None:
        super().__init__(named or {})
        self.passes_over = passes_over

    def written(self) -> Iterator[torch.Tensor]:
        """The tensors that hold nothing of their own once all weights are written."""
        for unit in dict.fromkeys(weight.unit for weight in self.values()):
            yield from unit.written()
