"""Kept keys and values against a gather of them in each step, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention import kept_keys
from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.memory.pages import KVCache

BLOCK_SIZE, NUM_BLOCKS, LAYERS = 4, 64, 2
SPEC = AttentionSpec(4, 2, 16, scale=0.25)


class Pair:
    """One backend that keeps keys and one that gathers, over caches of equal contents."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.backends = []
        for _ in range(2):
            cache = KVCache(
                [SPEC] * LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float32, torch.device("cpu")
            )
            self.backends.append((PlainAttention([SPEC] * LAYERS, cache), cache))
        self.backends[1][0]._kept = None

    def step(self, rows: dict[int, tuple[int, int]], *, layers: int = LAYERS) -> None:
        """Compute tokens first .. last - 1 of rows, which own eight blocks each, in a step."""
        lengths = np.array([last - first for first, last in rows.values()])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        seen = np.array([last for _, last in rows.values()], dtype=np.int32)
        tables = np.array([np.arange(8) + 1 + 8 * (row % 7) for row in rows], dtype=np.int32)
        slots = np.concatenate(
            [
                table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
                for table, (first, last) in zip(tables, rows.values(), strict=True)
                for positions in [np.arange(first, last)]
            ]
        )
        granted = np.arange(8) * BLOCK_SIZE < seen[:, None]
        inputs = AttentionInputs(
            query_starts=torch.from_numpy(starts),
            query_starts_np=starts,
            seq_lens=torch.from_numpy(seen),
            block_tables=torch.from_numpy(np.where(granted, tables, 0).astype(np.int32)),
            slots=torch.from_numpy(slots.astype(np.int64)),
            seq_lens_np=seen,
            max_query_len=int(lengths.max()),
        )
        for backend, _ in self.backends:
            backend.begin(inputs)
        for layer in range(layers):
            q, k, v = (
                torch.randn(len(slots), heads, 16, generator=self.generator) for heads in (4, 2, 2)
            )
            one, other = (backend.attend(layer, q, k, v) for backend, _ in self.backends)
            assert torch.equal(one, other)


def decode(pair: Pair, rows: tuple[int, ...], lengths: range) -> None:
    for length in lengths:
        pair.step({row: (length + row % 3, length + row % 3 + 1) for row in rows})


def spoil(pair: Pair) -> None:
    """Make every page of the first backend NaN, which only who gathers again can see."""
    for layer in pair.backends[0][1].layers:
        layer[1:] = torch.nan


def test_layers_that_do_not_attend_keep_no_keys() -> None:
    """Their cache says no device, and the step's tensors may be on a GPU."""
    cache = KVCache([], 2, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    assert kept_keys.KeptKeys.of([], cache) is None


def test_rows_decode_as_if_gathered_each_time() -> None:
    pair = Pair()
    pair.step({row: (0, 3 + row % 3) for row in range(4)})
    decode(pair, (0, 1, 2, 3), range(3, 24))  # beyond the room of the first gather


def test_what_is_kept_is_not_gathered_again() -> None:
    pair = Pair()
    pair.step({0: (0, 3), 1: (0, 4)})
    decode(pair, (0, 1), range(3, 4))
    spoil(pair)
    decode(pair, (0, 1), range(4, 7))
    with pytest.raises(AssertionError):
        decode(pair, (1,), range(7, 8))


@pytest.mark.parametrize(
    "rows",
    [
        {0: (6, 7)},  # one ended
        {1: (7, 8), 0: (6, 7)},  # in another order
        {0: (6, 7), 1: (7, 8), 2: (0, 1)},  # one more
        {0: (6, 7), 1: (7, 8), 2: (0, 5)},  # a prompt beside them
        {7: (6, 7), 1: (7, 8)},  # another choice in the first one's row and blocks
    ],
)
def test_other_rows_are_gathered_anew(rows: dict[int, tuple[int, int]]) -> None:
    pair = Pair()
    pair.step({0: (0, 3), 1: (0, 4)})
    decode(pair, (0, 1), range(3, 6))
    if 7 in rows:
        pair.step({7: (0, 6)})  # overwrites what row 0 had
    pair.step(rows)
    decode(pair, (0, 1), range(7, 10))


def test_rows_as_long_in_other_blocks_are_gathered_anew() -> None:
    pair = Pair()
    pair.step({0: (0, 3), 1: (0, 4), 2: (0, 6)})
    decode(pair, (0, 1), range(3, 6))
    pair.step({2: (6, 7), 1: (7, 8)})


def test_a_step_that_failed_is_not_built_upon() -> None:
    pair = Pair()
    pair.step({0: (0, 3), 1: (0, 4)})
    decode(pair, (0, 1), range(3, 5))
    pair.step({0: (5, 6), 1: (6, 7)}, layers=1)
    k, v = (torch.randn(2, 2, 16, generator=pair.generator) for _ in range(2))
    for backend, _ in pair.backends:
        backend.cells(1).store(k, v)  # as far as it came in the second layer
    decode(pair, (0, 1), range(6, 9))


@pytest.mark.parametrize("limit", [0, 1 << 15])
def test_no_more_is_kept_than_may_be(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_keys, "KEPT_BYTES", limit)
    pair = Pair()
    pair.step({row: (0, 3 + row % 3) for row in range(2)})
    decode(pair, (0, 1), range(3, 24))
    holder = pair.backends[0][0]._kept
    assert holder is not None
    assert not holder._layers


def test_lengths_far_apart_are_gathered_in_groups() -> None:
    pair = Pair()
    pair.step({0: (0, 3), 1: (0, 30), 2: (0, 3), 3: (0, 3)})
    pair.step({0: (3, 4), 1: (30, 31), 2: (3, 4), 3: (3, 4)})
    assert not pair.backends[0][0]._is_kept
