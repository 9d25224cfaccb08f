"""Decode attention of one layer: one query token a row, and several as verification brings.

    python -m benchmarks.bench_attention

Times are of replayed CUDA graphs over caches in bfloat16 and float8 far larger than the GPU's own,
beside the time of reading the keys and values once. Prints a line a case; the last line is JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.decode.attention import paged_decode
from engine.kernels.decode.split_keys import DecodeScratch
from engine.memory.pages import KVCache

DEVICE = torch.device("cuda")
HEADS = {"16 q, 8 kv": (16, 8), "32 q, 8 kv": (32, 8)}
CASES = ((1, 200), (64, 1000), (256, 200), (256, 1000))
QUERY_LENS = (1, 2, 5, 9)
HEAD_DIM, BLOCK_SIZE = 128, 16
LAYERS, REPLAYS = 8, 12
COPY_GB_PER_S = 4298


def layers_us(attend: Callable[[int], None]) -> float:
    """Median time a layer of LAYERS in one graph."""
    attend(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(LAYERS):
            attend(layer)
    times = []
    for _ in range(REPLAYS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)))
    return statistics.median(times) / LAYERS * 1e3


def case_us(
    heads: tuple[int, int], rows: int, context: int, query_len: int, *, in_fp8: bool
) -> float:
    """A layer's time for rows of one length."""
    spec = AttentionSpec(*heads, HEAD_DIM, HEAD_DIM**-0.5)
    each = -(-context // BLOCK_SIZE)
    scales = [torch.ones(2, heads[1], device=DEVICE)] * LAYERS if in_fp8 else None
    cache = KVCache([spec] * LAYERS, rows * each + 1, BLOCK_SIZE, torch.bfloat16, DEVICE, scales)
    for layer in cache.layers:
        layer.copy_(torch.randn(layer.shape, dtype=torch.bfloat16, device=DEVICE))
    tables = (torch.randperm(rows * each, device=DEVICE) + 1).int().view(rows, each)
    lengths = torch.full((rows,), context, dtype=torch.int32, device=DEVICE)
    q = torch.randn(rows * query_len, heads[0], HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty_like(q)
    scratch = DecodeScratch([spec], rows, DEVICE, query_len, cache.layers[0].itemsize)

    def attend(layer: int) -> None:
        pages, scales = cache.layers[layer], cache.layer_scales(layer)
        paged_decode(spec, q, pages, tables, lengths, out, scratch, query_len, scales)

    return layers_us(attend)


def main() -> None:
    """Every case, and what reading its keys and values takes."""
    results: list[dict[str, Any]] = []
    for name, heads in HEADS.items():
        for rows, context in CASES:
            for dtype, size in (("bfloat16", 2), ("float8", 1)):
                read = rows * context * 2 * heads[1] * HEAD_DIM * size / COPY_GB_PER_S / 1e3
                times = {
                    n: round(case_us(heads, rows, context, n, in_fp8=size == 1), 1)
                    for n in QUERY_LENS
                }
                case = f"{name}, {dtype}: {rows} x {context}"
                print(f"{case}, read {read:.1f} us, tokens a row: {times}")
                results.append({"case": case, "read_us": read, "us": times})
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "results": results}))


if __name__ == "__main__":
    main()
