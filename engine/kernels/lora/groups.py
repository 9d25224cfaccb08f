"""The tokens of a step by their adapters, in tiles that kernels take one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.contracts.adapters import NO_SLOT
from engine.kernels.lora.lone import Handovers

TILE = 16
"""Tokens of a tile, which all have one adapter: a tensor core multiplies so many rows at once."""


class TokenGroups(NamedTuple):
    """The tokens of a step that have an adapter, in N tiles.

    Attributes:
        tokens: int32 [N, TILE], places in the step; -1 fills up a tile.
        slots: int32 [N], the slot of a tile's adapter; `NO_SLOT` for a tile without tokens.
        by_token: int32 [T], the slot of each token; None of pairs of tokens and experts, which are
            grouped within the step: all else of a step is there before its first kernel.
        in_graph: the step is or will be captured, where kernels that wait for one another in
            two streams cost the host nothing.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    by_token: torch.Tensor | None = None
    in_graph: bool = False


def num_tiles(num_tokens: int, num_slots: int) -> int:
    """The most tiles that so many tokens fill, whichever of the adapters each of them has."""
    used = min(num_tokens, num_slots)
    return (num_tokens - used) // TILE + used


def group_tokens(
    slots: npt.NDArray[np.int32], count: int | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Sort the tokens of a step into tiles.

    Args:
        slots: int32 [T], of the tokens; `NO_SLOT` for none.
        count: the tiles to make, the last of them empty; None makes as many as are filled.

    Returns:
        `tokens` and `slots` of `TokenGroups`.
    """
    adapted = np.flatnonzero(slots != NO_SLOT)
    order = adapted[np.argsort(slots[adapted], kind="stable")]
    used, sizes = np.unique(slots[order], return_counts=True)
    tiles = -(-sizes // TILE)
    if count is None:
        count = int(tiles.sum())
    tokens = np.full((count, TILE), -1, dtype=np.int32)
    tile_slots = np.full(count, NO_SLOT, dtype=np.int32)
    tile_slots[: tiles.sum()] = np.repeat(used, tiles)
    begins = np.cumsum(tiles) - tiles
    firsts = np.cumsum(sizes) - sizes
    places = np.arange(len(order)) + np.repeat(begins * TILE - firsts, sizes)
    tokens.reshape(-1)[places] = order
    return tokens, tile_slots


class ActiveAdapters:
    """The adapters of the forward that is under way, which every adapted product reads.

    Attributes:
        groups: of the tokens that products get; None where none has an adapter, and products are
            the base's.
        handovers: of a lone row's step; None where products have kernels beside them.
    """

    def __init__(self) -> None:
        self.groups: TokenGroups | None = None
        self.handovers: Handovers | None = None

    @contextmanager
    def using(
        self, groups: TokenGroups | None, handovers: Handovers | None = None
    ) -> Iterator[None]:
        """Run a forward whose tokens have these adapters."""
        before = self.groups, self.handovers
        self.groups, self.handovers = groups, handovers
        if handovers is not None:
            handovers.begin()
        try:
            yield
        finally:
            self.groups, self.handovers = before
