"""A step's tiles and block tables at fixed addresses, where a graph's prefill kernel reads them.

A graph launches as many programs as it was captured with. So a step has its own tiles, and after
them tiles of no tokens, which read no key and write nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from engine.attention.tiled import Cut, StepTiles
from engine.kernels.prefill_attention import tile_width

MAX_ROWS = 8
"""Rows of a step whose tiles fit however its tokens are divided among them; more rows fit where
their tiles are no more. A tile of no tokens costs a program's start for each key head."""
MAX_BLOCKS = 1 << 16
"""Entries of a step's block tables: 256 KiB, a million tokens in blocks of 16."""


def most_tiles(num_tokens: int, cut: Cut) -> int:
    """The most tiles that `num_tokens` tokens of `MAX_ROWS` rows are cut into.

    Of each row but one, up to a whole tile less one token is left empty.
    """
    return -(-num_tokens // tile_width(*cut)) + MAX_ROWS - 1


class FixedTiles:
    """Holds the tiles of one step after another.

    Args:
        cuts: for which a step has tiles.
        max_tokens: of a step.
    """

    def __init__(self, cuts: Collection[Cut], max_tokens: int, device: torch.device) -> None:
        self._tables = torch.zeros(MAX_BLOCKS, dtype=torch.int32, device=device)
        self._tiles = {
            cut: torch.zeros((most_tiles(max_tokens, cut), 4), dtype=torch.int64, device=device)
            for cut in cuts
        }

    def of_size(self, size: int) -> StepTiles:
        """Views of what a step of up to `size` tokens has, the tiles of no tokens included."""
        tiles = {cut: tiles[: most_tiles(size, cut)] for cut, tiles in self._tiles.items()}
        return StepTiles(self._tables, tiles)

    def put(self, step: StepTiles, size: int) -> bool:
        """Take a step's tiles into `of_size(size)`; False, and nothing is changed, if they do not
        fit."""
        ours = self.of_size(size).by_cut
        num_blocks = step.tables.numel()
        if num_blocks > MAX_BLOCKS or any(
            len(tiles) > len(ours[cut]) for cut, tiles in step.by_cut.items()
        ):
            return False
        self._tables[:num_blocks] = step.tables.flatten()
        for cut, tiles in step.by_cut.items():
            ours[cut][: len(tiles)] = tiles
            ours[cut][len(tiles) :].zero_()
        return True
