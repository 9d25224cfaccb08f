"""What a row shares and what it has for itself make one softmax, in float64.

Blocks that belong to nobody, and cells past a row's last key, hold NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.item_attention import BLOCK_KEYS, TILE_QUERIES, item_attention, item_tiles
from engine.memory.pages import KVCache
from sampling.device.mirror import to_device
from tests.engine.kernels.paged_cases import BLOCK_SIZE, DTYPES, SPEC
from tests.engine.kernels.where import DEVICES

Rows = list[tuple[int, int]]
"""(keys beyond the shared ones, query tokens) of each."""
TILE = TILE_QUERIES // 2
"""Tokens of a tile where two heads share a key head."""
STEPS: dict[str, list[tuple[int, Rows]]] = {
    "one token": [(1, [(1, 1)])],
    "one token each": [(3, [(1, 1)] * 5)],
    "ragged": [(2, [(7, 7), (1, 1), (33, 33), (16, 16), (17, 17), (90, 90)])],
    "tile boundaries": [(1, [(n, n) for n in (TILE - 1, TILE, TILE + 1, 2 * TILE)])],
    "key boundaries": [(1, [(n, n) for n in (BLOCK_KEYS - 1, BLOCK_KEYS, BLOCK_KEYS + 1)])],
    "groups": [(2, [(5, 5), (20, 20)]), (4, [(3, 3)]), (1, [(40, 40), (1, 1), (9, 9)])],
    "keys of earlier steps": [(2, [(50, 3), (40, 33), (64, 1), (33, 32)])],
    "nothing shared": [(0, [(5, 5), (40, 40)]), (2, [(6, 6)])],
}


class State(NamedTuple):
    """Attention of T tokens over some of their keys, float64."""

    out: torch.Tensor
    log: torch.Tensor


class Case:
    """Groups of rows, each of (shared blocks, rows)."""

    def __init__(
        self, spec: AttentionSpec, groups: list[tuple[int, Rows]], dtype: torch.dtype, device: str
    ) -> None:
        torch.manual_seed(0)
        self.spec = spec
        rows = [(num_shared, *row) for num_shared, members in groups for row in members]
        widths = [num_shared - (-keys // BLOCK_SIZE) for num_shared, keys, _ in rows]
        self.tables = torch.zeros((len(rows), max(widths)), dtype=torch.int32)
        free = iter((torch.randperm(sum(widths) + sum(n for n, _ in groups)) + 1).tolist())
        first = 0
        for num_shared, members in groups:
            shared = torch.tensor([next(free) for _ in range(num_shared)], dtype=torch.int32)
            self.tables[first : first + len(members), :num_shared] = shared
            first += len(members)
        num_blocks = sum(widths) + sum(n for n, _ in groups) + 1
        cache = KVCache([spec], num_blocks, BLOCK_SIZE, dtype, torch.device("cpu"))
        self.pages = cache.layers[0].fill_(torch.nan)
        for table, width, (num_shared, keys, _) in zip(self.tables, widths, rows, strict=True):
            for i in range(num_shared, width):
                table[i] = next(free)
            for i in range(num_shared * BLOCK_SIZE + keys):
                cell = self.pages[table[i // BLOCK_SIZE], :, i % BLOCK_SIZE]
                if cell.isnan().any():
                    cell.normal_()
        self.rows, self.device = rows, device
        counts = [queries for _, _, queries in rows]
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.q = (2 * torch.randn(sum(counts), spec.num_q_heads, spec.head_dim)).to(dtype)

    def state(self, *, own: bool) -> State:
        """Of the shared keys, and of the own ones too if asked for: one softmax over them."""
        outs, logs = [], []
        for row, (num_shared, keys, queries) in enumerate(self.rows):
            before = num_shared * BLOCK_SIZE
            end = before + keys if own else before
            cells = self.pages[self.tables[row].long()].transpose(1, 2).flatten(0, 1)[:end]
            group = self.spec.num_q_heads // self.spec.num_kv_heads
            k, v = cells.double().repeat_interleave(group, dim=2).unbind(1)
            q = self.q[int(self.starts[row]) : int(self.starts[row + 1])].double()
            scores = torch.einsum("qhd,khd->qhk", q, k) * self.spec.scale
            if cap := self.spec.softcap:
                scores = cap * torch.tanh(scores / cap)
            positions = before + keys - queries + torch.arange(queries)
            hidden = torch.arange(end) > positions[:, None]
            scores.masked_fill_(hidden[:, None], -torch.inf)
            outs.append(torch.einsum("qhk,khd->qhd", scores.softmax(-1).nan_to_num(), v))
            logs.append(scores.logsumexp(-1) / math.log(2))
        return State(torch.cat(outs), torch.cat(logs))

    def attend(self) -> torch.Tensor:
        shared = self.state(own=False)
        num_shared, keys, _ = np.array(self.rows).T
        own_tables = np.arange(len(self.rows)) * self.tables.shape[1] + num_shared
        group = self.spec.num_q_heads // self.spec.num_kv_heads
        tiles = item_tiles(self.starts, keys, own_tables, group)
        assert tiles.dtype == np.int64
        out = shared.out.to(self.q.dtype).to(self.device)
        item_attention(
            out,
            shared.log.float().to(self.device),
            self.q.to(self.device),
            self.pages.to(self.device),
            self.tables.to(self.device),
            to_device(tiles, torch.device(self.device)),
            self.spec.scale,
            self.spec.softcap,
        )
        return out.cpu().double()

    def check(self) -> None:
        """The shared output, the weights and the result are rounded once each, by half a last
        digit of no more than the largest value. Weights are 2 to the power of a difference of
        scores and logs below 2^5, all of which float32 rounds.
        """
        dtype, largest = self.q.dtype, self.pages.nan_to_num().abs().max().item()
        assert self.state(own=True).log.abs().max() < 2**5
        exponents = 2**5 * torch.finfo(torch.float32).eps
        close = (1.5 * torch.finfo(dtype).eps + exponents) * largest
        torch.testing.assert_close(self.attend(), self.state(own=True).out, rtol=0, atol=close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STEPS)
def test_shared_and_own_keys_make_one_softmax(name: str, dtype: torch.dtype, device: str) -> None:
    Case(SPEC, STEPS[name], dtype, device).check()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 1), (71, 1)])
def test_shapes(heads: tuple[int, int], head_dim: int, softcap: float | None, device: str) -> None:
    spec = AttentionSpec(*heads, head_dim, scale=head_dim**-0.5, softcap=softcap)
    Case(spec, [(1, [(9, 9), (70, 3)]), (2, [(35, 35)])], torch.float16, device).check()


def test_tiles_cover_every_token_once() -> None:
    starts = np.array([10, 11, 11, 60, 92], dtype=np.int32)
    own_lens, own_tables = np.array([1, 0, 80, 32]), np.array([3, 13, 23, 33])
    tiles = item_tiles(starts, own_lens, own_tables, group=2)
    assert tiles.tolist() == [
        [3, 10, 1, 0],
        [23, 11, TILE, 31],
        [23, 11 + TILE, 49 - TILE, 31 + TILE],
        [33, 60, 32, 0],
    ]
