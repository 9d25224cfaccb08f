"""Products with adapters by themselves, in graphs, with the launch parameters in use and others.

    python -m benchmarks.bench_lora_kernels
    TRITON_INTERPRET=1 python -m benchmarks.bench_lora_kernels --dry

A line for each product of the two Qwen3 models, rows and adapters, in microseconds: the product
after a norm, and its gate where it has one; the same with inputs shrunk beside it; with all that
adapters do; the bytes of their A and B over the bandwidth of an H200; then the best of the variants
below and what it takes. Weights and adapters are more than a cache holds, as in a model.
`--dry` computes tiny products on the CPU, to see that all of it runs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.activation import silu_and_mul
from engine.kernels.lora import delta, expand, groups, lone, shrink
from engine.kernels.lora.groups import TokenGroups, group_tokens, num_tiles
from engine.kernels.lora.lone import Handovers, lone_linear
from engine.kernels.lora.stacks import Stacks
from engine.kernels.norm import rms_norm
from engine.kernels.skinny import SkinnyShape, skinny_linear
from sampling.device.compiling import compiling_together
from sampling.device.triton_support import triton

RANK, EPS = 16, 1e-6
BANDWIDTH = 4.8e12  # bytes a second of an H200
COLD, LEAST_COPIES, MOST_COPIES = 200 << 20, 4, 40
"""Bytes that a graph reads at least, four times the cache, and the products in it."""
REPLAYS = 20
COLUMNS = ("product", "rows", "adapters", "base", "shrunk", "all", "bound", "best", "best us")


class Product(NamedTuple):
    """A product of a layer: outputs of its modules, and inputs."""

    name: str
    widths: tuple[int, ...]
    num_inputs: int
    gated: bool = False


PRODUCTS = (
    Product("0.6B qkv", (2048, 1024, 1024), 1024),
    Product("0.6B o", (1024,), 2048),
    Product("0.6B gate, up", (3072, 3072), 1024, gated=True),
    Product("0.6B down", (1024,), 3072),
    Product("8B qkv", (4096, 1024, 1024), 4096),
    Product("8B o", (4096,), 4096),
    Product("8B gate, up", (12288, 12288), 4096, gated=True),
    Product("8B down", (4096,), 12288),
)
TINY = (Product("qkv", (32, 16, 16), 64), Product("gate, up", (32, 32), 64, gated=True))
STEPS = ((1, 1), (256, 1), (256, 8), (256, 100))
TINY_STEPS = ((1, 1), (6, 2))
"""Rows and the adapters that they take in turn."""
Constants = tuple[tuple[Any, str, Any], ...]
IN_USE, IN_LINE = "in use", "in one stream"
VARIANTS: dict[str, Constants] = {
    IN_USE: (),
    IN_LINE: (),
    "shrink begins early": ((delta, "LONG", 0),),
    "shrink begins late": ((delta, "LONG", 1 << 30),),
    "64 outputs a program": ((expand, "COLUMNS", 64),),
    "128 outputs of a gate": ((expand, "GATED_COLUMNS", 128),),
    "32 outputs of a gate": ((expand, "GATED_COLUMNS", 32),),
    "1 warp expands": ((expand, "WARPS", 1),),
    "4 warps expand": ((expand, "WARPS", 4),),
    "32 tokens a tile": tuple((each, "TILE", 32) for each in (expand, shrink, groups)),
    "fewer sums": ((shrink, "FEW_SUMS", 2), (shrink, "MOST_SPAN", 2048)),
    "more sums": ((shrink, "FEW_SUMS", 8),),
    "two turns loaded": ((shrink, "MOST_LOADED", 0),),
    "B not fetched ahead": ((shrink, "MOST_FETCHED", 0),),
}
LONE_SHAPES, MOST_HELD = ((1, 4), (2, 2), (2, 4), (2, 8), (4, 1), (4, 2), (4, 4)), 256
"""Outputs and warps of a lone row's programs, and weights that a thread of one holds at most."""


class Way(NamedTuple):
    """Something to time: the work of a graph, with launch parameters."""

    name: str
    constants: Constants
    work: Callable[[], None]


@contextmanager
def using(constants: Constants) -> Iterator[None]:
    """Launch with other parameters."""
    with ExitStack() as stack:
        for owner, name, value in constants:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


class Case:
    """Copies of a product, each with the adapters of a step's rows.

    Args:
        rows: of the step. adapters: that they take in turn.
    """

    def __init__(self, product: Product, rows: int, adapters: int, device: str) -> None:
        self.product, self.rows, self.adapters, self.device = product, rows, adapters, device
        out, inputs, modules = sum(product.widths), product.num_inputs, len(product.widths)
        self.added = 2 * adapters * RANK * (modules * inputs + out)
        copies = math.ceil(COLD / (2 * out * inputs + self.added))
        copies = max(min(copies, MOST_COPIES), LEAST_COPIES) if device == "cuda" else 2
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        some = partial(torch.randn, device=device, dtype=dtype)
        self.x, self.norm = some((rows, inputs)), some(inputs)
        bounds = tuple(np.cumsum([0, *product.widths]).tolist())
        scales = torch.full((adapters, 1, modules), 0.01, device=device)
        self.weights, self.stacks = [], []
        for _ in range(copies):
            a, b = some((adapters, 1, modules, RANK, inputs)), some((adapters, 1, out, RANK))
            self.weights.append(some((out, inputs)))
            self.stacks.append(Stacks(a, b, scales, bounds))
        self.slots = np.arange(rows, dtype=np.int32) % adapters
        self.by_token = torch.from_numpy(self.slots).to(device)
        self.handovers = Handovers(copies, modules * RANK, torch.device(device))

    def groups(self, *, beside: bool) -> TokenGroups:
        """The rows in as many tiles as a graph has."""
        made = group_tokens(self.slots, num_tiles(self.rows, self.adapters))
        tokens, tiles = (torch.from_numpy(each).to(self.device) for each in made)
        return TokenGroups(tokens, tiles, self.by_token, beside and self.device == "cuda")

    def run(self, tiles: TokenGroups | None, *, expands: bool = True) -> None:
        """Compute all copies of a step of many rows; without adapters if there are no tiles."""
        gated = self.product.gated
        add = expand.expand_gated_triton if gated else expand.expand_triton
        for weight, stacks in zip(self.weights, self.stacks, strict=True):
            x = rms_norm(self.x, self.norm, EPS)
            multiply = partial(F.linear, x, weight)
            if tiles is None:
                out = multiply()
            else:
                shrunk, out, launch = delta.shrunk_beside(multiply, x, stacks, tiles)
            if tiles is not None and expands:
                add(out, shrunk, stacks, tiles, **launch)
            elif gated:
                silu_and_mul(out)

    def run_lone(self, *, adapted: bool) -> None:
        """Compute all copies of a step of a lone row."""
        self.handovers.begin()
        gated = self.product.gated
        for weight, stacks in zip(self.weights, self.stacks, strict=True):
            if not adapted:
                skinny_linear(self.x, weight, gated=gated)
                continue
            handover = self.handovers.take()
            assert handover is not None
            lone_linear(self.x, weight, None, stacks, self.by_token, handover, gated=gated)

    def ways(self) -> Iterator[Way]:
        """What is timed."""
        if self.rows == 1:
            yield from self._lone_ways()
            return
        yield Way("base", (), partial(self.run, None))
        yield Way("shrunk", (), partial(self.run, self.groups(beside=True), expands=False))
        for name, constants in VARIANTS.items():
            with using(constants):
                tiles = self.groups(beside=name != IN_LINE)
            yield Way(name, constants, partial(self.run, tiles))

    def _lone_ways(self) -> Iterator[Way]:
        gated, block = self.product.gated, triton.next_power_of_2(self.product.num_inputs)
        adapted = partial(self.run_lone, adapted=True)
        yield Way("base", (), partial(self.run_lone, adapted=False))
        yield Way(IN_USE, (), adapted)
        for shape in (SkinnyShape(*each) for each in LONE_SHAPES):
            held = shape.rows * block * (1 + gated) // (32 * shape.warps)
            if shape != lone.lone_shape(block, gated=gated) and held <= MOST_HELD:
                constants = ((lone, "lone_shape", lambda *_, own=shape, **__: own),)
                yield Way(f"{shape.rows} rows {shape.warps} warps", constants, adapted)


def timed_us(work: Callable[[], None], *, on_gpu: bool) -> float:
    """Microseconds of a graph's replay, of one run on the CPU."""
    started = time.perf_counter()
    work()
    if not on_gpu:
        return 1e6 * (time.perf_counter() - started)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(1e3 * begin.elapsed_time(end)) / REPLAYS


def row_of(case: Case) -> dict[str, Any]:
    """The line of a case: microseconds of a product."""
    times = {}
    for name, constants, work in case.ways():
        with using(constants):
            taken = timed_us(work, on_gpu=case.device == "cuda")
        times[name] = round(taken / len(case.weights), 2)
    fixed = {name: times.pop(name, None) for name in ("base", "shrunk")}
    best = min(times, key=lambda name: times[name])
    sizes = {"product": case.product.name, "rows": case.rows, "adapters": case.adapters}
    ours = {"all": times[IN_USE], "bound": round(1e6 * case.added / BANDWIDTH, 2)}
    return sizes | fixed | ours | {"best": best, "best us": times[best], "variants": times}


def main() -> None:
    """Compile all kernels at once, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="tiny products on the CPU")
    dry = parser.parse_args().dry
    products, steps, device = (TINY, TINY_STEPS, "cpu") if dry else (PRODUCTS, STEPS, "cuda")
    started, rows = time.perf_counter(), []
    with compiling_together():
        for product in products:
            for step in steps if not dry else ():
                for _, constants, work in Case(product, *step, device).ways():
                    with using(constants):
                        work()
    print(f"compiled in {time.perf_counter() - started:.0f} s\n", *(f"{n:>14}" for n in COLUMNS))
    for product in products:
        for step in steps:
            rows.append(row_of(Case(product, *step, device)))
            print(*(f"{rows[-1][name]!s:>14}" for name in COLUMNS), flush=True)
    print(json.dumps({"device": device, "seconds": time.perf_counter() - started, "rows": rows}))


if __name__ == "__main__":
    main()
