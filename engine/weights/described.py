"""Tensors that a trainer describes before it broadcasts them, as prime-rl's does.

Rank 0 says how many parts there are. Of each part it sends the length of a pickle, the pickle,
which has names, shapes and counts of numbers by type, and all numbers of each type as one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod
from typing import Protocol

import torch

from engine.contracts.weights import WeightUpdateError
from engine.weights.handles import unpickled

MAX_DESCRIPTION = 1 << 28
"""Bytes of a pickle at most."""


class Broadcast(Protocol):
    """A group in which rank 0 broadcasts."""

    def receive(self, target: torch.Tensor) -> None:
        """Overwrite a tensor on the group's device by rank 0's."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


def described_tensors(group: Broadcast, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of all parts, with their names.

    Raises:
        WeightUpdateError: a description describes anything else.
    """
    for _ in range(_integer(group, device)):
        length = _integer(group, device)
        if not 0 < length <= MAX_DESCRIPTION:
            words = f"a description has {length} bytes; at most {MAX_DESCRIPTION} are read"
            raise WeightUpdateError(words, "bad_source")
        raw = torch.empty(length, dtype=torch.uint8, device=device)
        group.receive(raw)
        for dtype, infos in unpickled(raw.cpu().numpy().tobytes()).items():
            sizes = [prod(shape) for _, shape, _ in infos]
            numbers = torch.empty(sum(sizes), dtype=dtype, device=device)
            group.receive(numbers)
            places = pairwise(accumulate(sizes, initial=0))
            for (name, shape, _), (start, end) in zip(infos, places, strict=True):
                yield name, numbers[start:end].view(shape)


def _integer(group: Broadcast, device: torch.device) -> int:
    number = torch.zeros(1, dtype=torch.int64, device=device)
    group.receive(number)
    return int(number.item())
