"""Reads weights of several ranks so that one that cannot, as for lack of memory, ends none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from engine.contracts.named_weights import NamedWeight
from engine.weights.agreement import agreed
from sampling.device.ranks import RankExchange

Result = TypeVar("Result")


def read_together(
    weight: NamedWeight, exchange: RankExchange, use: Callable[[torch.Tensor], Result]
) -> Result:
    """What `use`, which exchanges nothing, makes of a whole weight; all ranks call it alike.

    What takes memory of a GPU comes before ranks exchange their parts or after it, so that none is
    left waiting in the midst.

    Raises:
        WeightUpdateError: on every rank, where one of them could not read or use it.
    """
    if exchange.size == 1:
        return agreed(lambda: use(weight.read()), exchange)
    unit = weight.unit
    parts = agreed(lambda: {name: each.on_host() for name, each in unit.get().items()}, exchange)
    whole = {name: part.whole(unit.exchange) for name, part in parts.items()}
    return agreed(lambda: use(unit.stored(whole)[weight.own_name]), exchange)
