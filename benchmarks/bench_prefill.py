"""Prefill attention of one layer: the kernel of our own and FlashInfer's, in the same run.

    python -m benchmarks.bench_prefill --tokens 65536

Prompts of one length without a prefix, in bfloat16; then few tokens after many that are cached, by
our kernel alone, with a program for all keys of a tile and with several. Prints a line a case, best
of several launches; the last line is JSON. Products are 4 * D for each query head, token and key it
sees.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.bench_attention import LAYERS, layers_us
from engine.attention.fixed_tiles import most_tiles
from engine.attention.flashinfer import FlashInferPrefill, modules_of
from engine.attention.modules import wait_for_modules
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.kernels import prefill_shares
from engine.kernels.prefill_attention import (
    Tiling,
    prefill_attention,
    prefill_tiles,
    tile_width,
    tiling_of,
)
from engine.kernels.prefill_shares import Divided, PrefillScratch
from engine.memory.pages import KVCache
from sampling.device.compiling import compiling_together
from sampling.device.mirror import to_device

DEVICE = torch.device("cuda")
HEADS = {"32 q, 8 kv": (32, 8), "16 q, 8 kv": (16, 8)}
LENGTHS = (512, 4096)
HEAD_DIM, BLOCK_SIZE, LAUNCHES = 128, 16, 6
CACHED_HEADS = {"16 q, 8 kv of 128": (16, 8, 128), "24 q, 4 kv of 256": (24, 4, 256)}
CACHED, NUM_NEW = (0, 500, 8000), 64
"""Keys before the new tokens of a row, and how many of these there are."""
FEWEST = (128, 256, 512)
"""Keys of a share at least, of which `prefill_shares.LONG` is in use."""


class Prompts:
    """Prompts of one length in one layer's cache."""

    def __init__(self, heads: tuple[int, int], length: int, num_tokens: int) -> None:
        self.spec = AttentionSpec(*heads, HEAD_DIM, HEAD_DIM**-0.5)
        rows, each = num_tokens // length, -(-length // BLOCK_SIZE)
        self.cache = KVCache([self.spec], rows * each + 1, BLOCK_SIZE, torch.bfloat16, DEVICE)
        self.cache.layers[0].normal_()
        starts = np.arange(rows + 1, dtype=np.int32) * length
        lengths = np.full(rows, length, dtype=np.int32)
        tables = (torch.randperm(rows * each, device=DEVICE) + 1).int().view(rows, each)
        self.inputs = AttentionInputs(
            query_starts=torch.from_numpy(starts).to(DEVICE),
            query_starts_np=starts,
            seq_lens=torch.from_numpy(lengths).to(DEVICE),
            block_tables=tables,
            slots=torch.zeros(rows * length, dtype=torch.int64, device=DEVICE),
            seq_lens_np=lengths,
            max_query_len=length,
            decode_len=0,
        )
        shape = (rows * length, heads[0], HEAD_DIM)
        self.q = torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)
        self.out = torch.empty_like(self.q)
        self.products = 2.0 * HEAD_DIM * heads[0] * rows * length * (length + 1)

    def by_ours(self, tiling: Tiling) -> Callable[[], None]:
        """A launch of our kernel."""
        inputs, (heads, kv_heads) = self.inputs, (self.spec.num_q_heads, self.spec.num_kv_heads)
        width, group = inputs.block_tables.shape[1], heads // kv_heads
        args = inputs.query_starts_np, inputs.seq_lens_np, width, group, tiling
        tiles = to_device(prefill_tiles(*args), DEVICE)
        pages, tables = self.cache.layers[0], inputs.block_tables
        return lambda: prefill_attention(self.spec, self.q, pages, tables, tiles, self.out, tiling)

    def by_flashinfer(self) -> Callable[[], None]:
        """A launch of FlashInfer's, planned."""
        wait_for_modules(modules_of([self.spec], torch.bfloat16, DEVICE))
        prefill = FlashInferPrefill([self.spec], self.cache)
        assert prefill.is_loaded
        prefill.begin(self.inputs)
        return lambda: prefill.attend(0, self.q, self.out)


def best_ms(launch: Callable[[], None]) -> float:
    """Least device time of a launch."""
    times = []
    for _ in range(LAUNCHES):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        launch()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)))
    return min(times)


def case(name: str, length: int, num_tokens: int, tilings: list[Tiling]) -> dict[str, Any]:
    """All times of one shape."""
    prompts = Prompts(HEADS[name], length, num_tokens)
    ours = {tiling: prompts.by_ours(tiling) for tiling in tilings}
    with compiling_together():
        for launch in ours.values():
            launch()
    theirs = prompts.by_flashinfer()
    flashinfer_ms = best_ms(theirs)
    wanted = prompts.out.float()
    row: dict[str, Any] = {"heads": name, "length": length, "flashinfer_ms": flashinfer_ms}
    row["flashinfer_tflops"] = round(prompts.products / flashinfer_ms / 1e9, 1)
    for tiling, launch in ours.items():
        ms = best_ms(launch)
        error = (prompts.out.float() - wanted).abs().max().item()
        key = "x".join(map(str, tiling))
        row[key] = {"ms": round(ms, 3), "ratio": round(flashinfer_ms / ms, 2), "error": error}
    return row


class Continued:
    """A row of `NUM_NEW` tokens after some that are cached, in several layers."""

    def __init__(self, heads: tuple[int, int, int], cached: int) -> None:
        self.spec = AttentionSpec(*heads, heads[2] ** -0.5)
        num_keys = cached + NUM_NEW
        each = -(-num_keys // BLOCK_SIZE)
        specs = [self.spec] * LAYERS
        self.cache = KVCache(specs, each + 1, BLOCK_SIZE, torch.bfloat16, DEVICE)
        for layer in self.cache.layers:
            layer.normal_()
        self.tables = (torch.randperm(each, device=DEVICE) + 1).int()[None]
        self.q = torch.randn((NUM_NEW, heads[0], heads[2]), dtype=torch.bfloat16, device=DEVICE)
        self.out = torch.empty_like(self.q)
        group, self.tiling = heads[0] // heads[1], tiling_of(heads[2], torch.bfloat16, DEVICE)
        starts, lengths = np.array([0, NUM_NEW]), np.array([num_keys])
        args = starts.astype(np.int32), lengths.astype(np.int32), each, group, self.tiling
        self._tiles, self._most = prefill_tiles(*args), most_tiles(NUM_NEW, (group, self.tiling))
        self._num_keys = num_keys
        count = group * tile_width(group, self.tiling)
        self._scratch = PrefillScratch(count, count * heads[2], DEVICE)

    def times(self, *, in_graph: bool) -> dict[str, Any]:
        """Of a layer, in the step's own tiles or in as many as a graph for any such step has."""
        tiles, num_keys = self._tiles, self._num_keys
        if in_graph:
            tiles = np.pad(tiles, [(0, self._most - len(tiles)), (0, 0)])
            num_keys = 1 << 30
        on_device, num_programs = to_device(tiles, DEVICE), len(tiles) * self.spec.num_kv_heads

        def attend(layer: int, by: Divided | None) -> None:
            pages, rest = self.cache.layers[layer], (self.tables, on_device, self.out, self.tiling)
            prefill_attention(self.spec, self.q, pages, *rest, divided=by)

        whole_us = layers_us(lambda layer: attend(layer, None))
        wanted, found = self.out.float(), {"whole_us": round(whole_us, 1), "error": 0.0}
        for fewest in FEWEST:
            with mock.patch.object(prefill_shares, "LONG", fewest):
                divided = self._scratch.divided(num_programs, num_keys, some_empty=in_graph)
            divided_us = layers_us(partial(attend, by=divided))
            shares = divided.most if divided else 1
            found[f"{shares} shares of {fewest} or more, us"] = round(divided_us, 1)
            error = (self.out.float() - wanted).abs().max().item()
            found["error"] = max(found["error"], error)
        return found


def continued() -> list[dict[str, Any]]:
    """Every case of few tokens after cached ones."""
    rows = []
    for name, heads in CACHED_HEADS.items():
        for cached in CACHED:
            layers = Continued(heads, cached)
            for in_graph in (False, True):
                row = {"heads": name, "cached": cached, "new": NUM_NEW, "in_graph": in_graph}
                rows.append(row | layers.times(in_graph=in_graph))
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Every case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--only-cached", action="store_true", help="nothing of FlashInfer's")
    parser.add_argument("--tilings", default="", help="such as 128,64,8,3;64,64,4,3")
    args = parser.parse_args()
    given = [each.split(",") for each in args.tilings.split(";") if each]
    tilings = [Tiling(*map(int, each)) for each in given]
    tilings = tilings or [tiling_of(HEAD_DIM, torch.bfloat16, DEVICE)]
    rows = continued()
    for name in HEADS if not args.only_cached else ():
        for length in LENGTHS:
            rows.append(row := case(name, length, args.tokens, tilings))
            print(row, flush=True)
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main()
