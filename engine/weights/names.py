"""Finds the weights that a trainer's names mean.

Trainers send tensors by the names of the checkpoint, or of their own modules: queries, keys and
values, gate and up, or all experts of a layer, as one tensor or apart. An LM head that is tied may
be sent besides the embeddings.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.contracts.named_weights import NamedWeight, NamedWeights, TensorInfo
from engine.contracts.weights import WeightUpdateError

JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Modules of one input that are apart or joined, their outputs in order."""
EXPERTS = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
"""Tensors [experts, out, in] of all experts, and what an expert's parts are called in files."""
EXPERT_HOLDERS = (("mlp", "mlp"), ("mlp", "block_sparse_moe"), ("feed_forward", "feed_forward"))
"""Modules that hold experts, and what they are called in files."""
HEADS = ("lm_head.weight", "language_model.lm_head.weight")
EMBEDDINGS = ("model.embed_tokens.weight", "backbone.embeddings.weight")
"""Names of heads, and of the embeddings that a model without a head of its own multiplies by."""


@dataclass(frozen=True, eq=False)
class WeightPiece:
    """What a given tensor says of one weight.

    Attributes:
        source: of the given tensor, an expert's index or None, and a range of rows or None.
        rows: of the weight that it is; None is all of it.
        is_tied: a head that the weight is as well, which is compared with it.
    """

    weight: NamedWeight
    expert: int | None = None
    source: slice | None = None
    rows: slice | None = None
    is_tied: bool = False

    def of(self, given: torch.Tensor) -> torch.Tensor:
        """The piece of the given tensor."""
        part = given if self.expert is None else given[self.expert]
        return part if self.source is None else part[self.source]

    def info(self, given: TensorInfo) -> TensorInfo:
        """The shape and type of the weight that the piece would be all of."""
        shape = given.shape if self.expert is None else given.shape[1:]
        if self.source is not None:
            shape = (self.source.stop - self.source.start, *shape[1:])
        if self.rows is not None:
            shape = (*self.weight.shape[:1], *shape[1:])
        return TensorInfo(shape, given.dtype)


class NameMap:
    """The weights of a model or drafter by all names that are known for them."""

    def __init__(self, named: NamedWeights) -> None:
        self._named, self._passes_over = dict(named), named.passes_over
        for weight in named.values():
            self._named.setdefault(weight.own_name, weight)
        is_tied = self._named.keys().isdisjoint(HEADS)
        shared = [self._named[name] for name in EMBEDDINGS if is_tied and name in self._named]
        self._tied = {head: weight for weight in shared for head in HEADS}

    def passes_over(self, name: str) -> bool:
        """Whether a tensor of a checkpoint is no weight's."""
        is_known = name in self._named or name in self._tied
        return not is_known and self._passes_over(name)

    def pieces(self, name: str, info: TensorInfo) -> list[WeightPiece]:
        """What a given tensor says of which weights, which are checked against its shape and type.

        Raises:
            WeightUpdateError: no weight has the name.
            WeightError: a shape or type is another.
        """
        pieces = self._found(name, info)
        for piece in pieces:
            piece.weight.unit.check(piece.weight.own_name, piece.info(info))
        return pieces

    def _found(self, name: str, info: TensorInfo) -> list[WeightPiece]:
        if name in self._named:
            return [WeightPiece(self._named[name])]
        if name in self._tied:
            return [WeightPiece(self._tied[name], is_tied=True)]
        for find in (self._joined, self._apart, self._experts):
            if pieces := list(find(name, info)):
                return pieces
        near = difflib.get_close_matches(name, self._named, n=1)
        words = f"; the nearest is {near[0]!r}" if near else ""
        raise WeightUpdateError(f"the model has no weight {name!r}{words}", "unknown_weight")

    def _joined(self, name: str, info: TensorInfo) -> Iterator[WeightPiece]:
        """A joined tensor of weights that are apart."""
        for joined, parts in JOINED.items():
            if f".{joined}." not in name:
                continue
            names = [name.replace(f".{joined}.", f".{part}.") for part in parts]
            yield from self._in_turn([self._named.get(each) for each in names], info.shape)

    def _in_turn(
        self, weights: list[NamedWeight | None], shape: tuple[int, ...], expert: int | None = None
    ) -> Iterator[WeightPiece]:
        """Rows of weights, one after another, which are all rows of a tensor."""
        own = [weight for weight in weights if weight is not None]
        total = sum(weight.shape[0] for weight in own)
        rows = shape[0 if expert is None else 1]
        if len(own) < len(weights):
            return
        if total != rows:
            wanted = [total, *own[0].shape[1:]]
            raise WeightUpdateError(
                f"the tensor of {own[0].name!r} and what goes with it has shape {list(shape)}, the "
                f"model's have {wanted} together",
                "wrong_shape",
            )
        start = 0
        for weight in own:
            end = start + weight.shape[0]
            yield WeightPiece(weight, expert, slice(start, end))
            start = end

    def _apart(self, name: str, info: TensorInfo) -> Iterator[WeightPiece]:
        """A tensor that is some rows of a joined weight.

        Keys and values have as many, and so have gate and up.
        """
        for joined, parts in JOINED.items():
            for index, part in enumerate(parts):
                weight = self._named.get(name.replace(f".{part}.", f".{joined}."))
                if f".{part}." not in name or weight is None or not info.shape:
                    continue
                count, whole, others = info.shape[0], weight.shape[0], len(parts) - 1
                first = count if index == 0 else whole - others * count
                each, left = divmod(whole - first, others)
                if left or min(first, each) < 1 or (others == 1 and first != each):
                    raise WeightUpdateError(
                        f"the tensor {name!r} has {count} rows, which make up no {joined} of "
                        f"{whole} with the others",
                        "wrong_shape",
                    )
                start = 0 if index == 0 else first + (index - 1) * each
                yield WeightPiece(weight, rows=slice(start, start + count))

    def _experts(self, name: str, info: TensorInfo) -> Iterator[WeightPiece]:
        """A tensor of all experts, each of which has weights of its own."""
        found = re.fullmatch(r"(.*)\.(\w+)\.experts\.(gate_up_proj|down_proj)", name)
        if found is None or len(info.shape) < 2:
            return
        stem, holder, part = found.groups()
        holders = [stored for given, stored in EXPERT_HOLDERS if given == holder]
        for stored in holders:
            for names in EXPERTS[part]:
                place = f"{stem}.{stored}.experts"
                if f"{place}.0.{names[0]}.weight" not in self._named:
                    continue
                self._check_count(name, f"{place}.{{}}.{names[0]}.weight", info.shape[0])
                for expert in range(info.shape[0]):
                    own = [self._named.get(f"{place}.{expert}.{each}.weight") for each in names]
                    yield from self._in_turn(own, info.shape, expert)
                return

    def _check_count(self, name: str, expert: str, count: int) -> None:
        """Refuse a tensor of fewer or more experts; every rank has the names of all."""
        numbers = itertools.count()
        held = next(each for each in numbers if expert.format(each) not in self._named)
        if count != held:
            raise WeightUpdateError(
                f"the tensor {name!r} has {count} experts, the model's have {held}", "wrong_shape"
            )
