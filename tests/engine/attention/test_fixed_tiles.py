"""Tiles at fixed addresses are the step's, then tiles of no tokens; what has no room is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.fixed_tiles import MAX_BLOCKS, MAX_ROWS, FixedTiles, most_tiles
from engine.attention.tiled import StepTiles, TiledPrefill
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.kernels.prefill_attention import tile_width
from engine.memory.pages import KVCache

BLOCK_SIZE, MAX_TOKENS, CPU = 16, 64, torch.device("cpu")
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=32, scale=0.2)
SPECS = [SPEC, replace(SPEC, num_kv_heads=4), replace(SPEC, sliding_window=19)]
Rows = list[tuple[int, int]]
"""(keys a row's last token sees, query tokens) of each."""


def tiled() -> TiledPrefill:
    """Of layers in two cuts: one and two query heads a key head."""
    return TiledPrefill(SPECS, KVCache(SPECS, 1, BLOCK_SIZE, torch.float32, CPU))


def tiles_of(tiled: TiledPrefill, rows: Rows) -> StepTiles:
    """Of a step whose tables have a column more than its longest row needs."""
    counts = [-(-keys // BLOCK_SIZE) for keys, _ in rows]
    starts = np.cumsum([0, *(queries for _, queries in rows)], dtype=np.int32)
    lengths = np.array([keys for keys, _ in rows], dtype=np.int32)
    blocks = torch.arange(1, 1 + len(rows) * (max(counts) + 1), dtype=torch.int32)
    inputs = AttentionInputs(
        query_starts=torch.from_numpy(starts),
        query_starts_np=starts,
        seq_lens=torch.from_numpy(lengths),
        block_tables=blocks.view(len(rows), -1),
        slots=torch.zeros(int(starts[-1]), dtype=torch.int64),
        seq_lens_np=lengths,
        max_query_len=int(np.diff(starts).max()),
        decode_len=0,
    )
    tiled.begin(inputs, 0)
    return tiled.step


def check(fixed: StepTiles, step: StepTiles) -> None:
    """The fixed tiles begin with the step's, and the others have no tokens; so do the tables."""
    assert fixed.by_cut.keys() == step.by_cut.keys()
    for cut, tiles in step.by_cut.items():
        own = fixed.by_cut[cut]
        assert torch.equal(own[: len(tiles)], tiles)
        assert not own[len(tiles) :].any()
    assert torch.equal(fixed.tables[: step.tables.numel()], step.tables.flatten())


def test_each_step_leaves_no_tile_of_the_one_before() -> None:
    layers = tiled()
    fixed = FixedTiles(layers.cuts, MAX_TOKENS, CPU)
    addresses = [tensor.data_ptr() for tensor in fixed.of_size(MAX_TOKENS).by_cut.values()]
    steps: list[tuple[int, Rows]] = [
        (MAX_TOKENS, [(200, 40), (9, 9), (1, 1), (7, 7)]),
        (32, [(5, 5)]),
        (32, [(30, 3), (29, 29)]),
        (MAX_TOKENS, [(64, 64)]),
    ]
    assert len(layers.cuts) == 2
    for size, rows in steps:
        step = tiles_of(layers, rows)
        assert fixed.put(step, size)
        check(fixed.of_size(size), step)
    assert [t.data_ptr() for t in fixed.of_size(32).by_cut.values()] == addresses


def test_few_rows_fit_however_their_tokens_are_divided() -> None:
    layers = tiled()
    cut = max(layers.cuts)
    width = tile_width(*cut)
    worst = [(1, 1)] * (MAX_ROWS - 1) + [(width, width - MAX_ROWS + 1)]
    [num_tiles] = [len(t) for c, t in tiles_of(layers, worst).by_cut.items() if c == cut]
    assert num_tiles == most_tiles(width, cut)
    rng = np.random.default_rng(0)
    fixed = FixedTiles(layers.cuts, MAX_TOKENS, CPU)
    for num_tokens in range(MAX_ROWS, MAX_TOKENS + 1):
        ends = np.sort(rng.choice(np.arange(1, num_tokens), MAX_ROWS - 1, replace=False))
        counts = np.diff([0, *ends, num_tokens]).tolist()
        assert fixed.put(tiles_of(layers, [(count, count) for count in counts]), num_tokens)


def test_what_does_not_fit_changes_nothing() -> None:
    layers = tiled()
    fixed = FixedTiles(layers.cuts, MAX_TOKENS, CPU)
    before = tiles_of(layers, [(20, 20)])
    assert fixed.put(before, 32)
    many = tiles_of(layers, [(1, 1)] * 32)  # a tile each
    assert not fixed.put(many, 32)
    wide = before._replace(tables=torch.ones((2, MAX_BLOCKS // 2 + 1), dtype=torch.int32))
    assert not fixed.put(wide, 32)
    check(fixed.of_size(32), before)


@pytest.mark.parametrize("over", [0, 1])
def test_tables_fit_up_to_the_last_entry(over: int) -> None:
    layers = tiled()
    fixed = FixedTiles(layers.cuts, MAX_TOKENS, CPU)
    step = tiles_of(layers, [(20, 20)])
    step = step._replace(tables=torch.ones((1, MAX_BLOCKS + over), dtype=torch.int32))
    assert fixed.put(step, 32) == (not over)
