"""Experts on the GPU: errors against float64, times of launches beside bounds.

    python -m benchmarks.bench_experts --parts check,few,decode-64,decode-256,prefill

The layer is that of a shape with experts (Qwen3-30B-A3B: 128 experts of 768, 8 a token, hidden size
2048). Times are those of replayed CUDA graphs of `LAYERS` calls, each with inputs of its own and
with weights of another layer, so that no weight is in cache. Prints a line a measurement.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.bench_sampling import copy_gb_per_s
from benchmarks.shapes import EXPERTS
from engine.kernels.experts.few import down_few, gate_up_few
from engine.kernels.experts.few_router import route_few
from engine.kernels.experts.gates import SILU
from engine.kernels.experts.grouped import MORE_PAIRS, Tile, grouped_linear
from engine.kernels.experts.groups import group_pairs
from engine.kernels.experts.layer import (
    Experts,
    Router,
    experts_few,
    experts_triton,
)
from engine.kernels.experts.products import DenseExpertProduct, ExpertWeights
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from engine.kernels.experts.sums import weighted_sums
from engine.kernels.norm import rms_norm_torch
from engine.kernels.skinny import NUM_ROWS, Norm

DEVICE = torch.device("cuda")
SHAPE = "qwen3-30b-a3b"
HIDDEN = EXPERTS[SHAPE]["hidden_size"]
NUM_EXPERTS = EXPERTS[SHAPE]["num_experts"]
TOP_K = EXPERTS[SHAPE]["num_experts_per_tok"]
INNER = EXPERTS[SHAPE]["moe_intermediate_size"]
LAYERS = 4
"""Layers of 1.2 GB, far more than any cache holds."""
EXPERT_BYTES = 3 * HIDDEN * INNER * 2
DTYPE = torch.bfloat16
BLOCK_SIZE = 16

Call = Callable[[int], object]
Sides = tuple[int, ...]


def some_weights(num_experts: int, hidden: int, inner: int) -> ExpertWeights:
    """Random experts."""
    gate_up = torch.empty((num_experts, 2 * inner, hidden), dtype=DTYPE, device=DEVICE)
    down = torch.empty((num_experts, hidden, inner), dtype=DTYPE, device=DEVICE)
    gate_up.normal_(0, hidden**-0.5)
    down.normal_(0, inner**-0.5)
    return ExpertWeights(DenseExpertProduct(gate_up), DenseExpertProduct(down), None, None, SILU)


def some_routing(rows: int, num_experts: int, top_k: int) -> Routing:
    """Random choices; no row takes expert 1."""
    logits = torch.randn((rows, num_experts), device=DEVICE)
    logits[:, 1] = -torch.inf
    return choose_experts(logits, RoutingRules(top_k, over_chosen=True))


def graph_us(call: Call, count: int = LAYERS) -> float:
    """Microseconds of one of `count` calls in a graph, the median of some replays."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())  # which makes the inputs
    with torch.cuda.stream(stream):
        for index in range(count):
            call(index)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(count):
                call(index)
        times = []
        for _ in range(12):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            graph.replay()
            after.record()
            after.synchronize()
            times.append(before.elapsed_time(after) * 1e3 / count)
    return round(float(statistics.median(times[2:])), 2)


# -- errors -----------------------------------------------------------------------------------


def check() -> None:
    """Print the largest error of each path in units of its bound, which must stay below 1."""
    check_routing()
    for num_experts, top_k, hidden, inner in [(128, 8, HIDDEN, INNER), (7, 3, 72, 40)]:
        weights = some_weights(num_experts, hidden, inner)
        for rows in (1, 2, 4, 3, 50, 256, 2048):
            x = torch.randn((rows, hidden), device=DEVICE).to(DTYPE)
            routing = some_routing(rows, num_experts, top_k)
            got = {"many": experts_triton(x, routing, weights, None)}
            again = experts_triton(x, routing, weights, None)
            if rows in (1, 2, 4):
                got["few"] = experts_few(x, routing, weights, None)
            for name, out in got.items():
                error = _error(out, x, routing, weights)
                same = name == "few" or torch.equal(out, again)
                ok = error < 1 and same
                print(
                    "check", (num_experts, hidden, inner), rows, name, error, "ok" if ok else "BAD"
                )


def check_routing() -> None:
    """Print whether the kernel that norms, routes and chooses agrees with its parts."""
    router = torch.randn((NUM_EXPERTS, HIDDEN), device=DEVICE).to(DTYPE)
    arrivals = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for rows in NUM_ROWS:
        x, residual = torch.randn((2, rows, HIDDEN), device=DEVICE).to(DTYPE)
        norm = Norm(residual, torch.rand(HIDDEN, device=DEVICE).to(DTYPE), 1e-6)
        got = route_few(x, norm, router, None, RoutingRules(TOP_K, over_chosen=True), arrivals)
        wanted = Router(router, None, RoutingRules(TOP_K, over_chosen=True))(got.normed)
        normed = rms_norm_torch(x + residual, norm.weight, 1e-6)
        ok = (
            torch.equal(got.routing.ids, wanted.ids)
            and torch.allclose(got.routing.weights, wanted.weights, rtol=1e-3, atol=1e-5)
            and torch.allclose(got.normed, normed, rtol=2.0**-7, atol=1e-6)
            and torch.equal(got.sums, x + residual)
            and int(arrivals) == 0
        )
        print("check routing", rows, "ok" if ok else "BAD")


def _error(out: torch.Tensor, x: torch.Tensor, routing: Routing, weights: ExpertWeights) -> float:
    """The largest error against float64 in units of three roundings of the terms."""
    assert isinstance(weights.gate_up, DenseExpertProduct)
    assert isinstance(weights.down, DenseExpertProduct)
    wanted = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    size = torch.zeros_like(wanted)
    for expert in range(len(weights.gate_up.values)):
        tokens, ranks = (routing.ids == expert).nonzero(as_tuple=True)
        gate, up = (x[tokens].double() @ weights.gate_up.values[expert].double().T).chunk(2, dim=-1)
        inner, down = gate / (1 + (-gate).exp()) * up, weights.down.values[expert].double()
        share = routing.weights[tokens, ranks, None].double()
        wanted.index_add_(0, tokens, share * (inner @ down.T))
        size.index_add_(0, tokens, share * (inner.abs() @ down.abs().T))
    unit = torch.finfo(x.dtype).eps / 2
    bound = unit * (2 * size + wanted.abs()) + 1e-5 * (1 + size)
    return round(float(((out.double() - wanted).abs() / bound).max()), 3)


# -- times ------------------------------------------------------------------------------------


def few(gb_per_s: float) -> None:
    """Launches of the kernels for a few rows, at one row; and the whole layer."""
    layers = [some_weights(NUM_EXPERTS, HIDDEN, INNER) for _ in range(LAYERS)]
    x = torch.randn((1, HIDDEN), device=DEVICE).to(DTYPE)
    inner = torch.randn((TOP_K, INNER), device=DEVICE).to(DTYPE)
    routings = [some_routing(1, NUM_EXPERTS, TOP_K) for _ in range(8 * LAYERS)]
    count = len(routings)
    bound = TOP_K * EXPERT_BYTES / gb_per_s / 1e3

    def gate_up(rows: int, warps: int, index: int) -> object:
        weight = layers[index % LAYERS].gate_up
        assert isinstance(weight, DenseExpertProduct)
        return gate_up_few(x, routings[index].ids, weight.values, None, SILU, rows, warps)

    def down(rows: int, warps: int, index: int) -> object:
        weight = layers[index % LAYERS].down
        assert isinstance(weight, DenseExpertProduct)
        return down_few(inner, routings[index], weight.values, None, None, rows, warps)

    for rows, warps in [(1, 2), (1, 4), (2, 4), (2, 8), (4, 8)]:
        print(
            "gate_up",
            (rows, warps),
            graph_us(partial(gate_up, rows, warps), count),
            "bound",
            round(bound * 2 / 3, 2),
        )
    for rows, warps in [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (4, 8)]:
        print(
            "down",
            (rows, warps),
            graph_us(partial(down, rows, warps), count),
            "bound",
            round(bound / 3, 2),
        )
    _layers(layers, (1, 2, 4, 8, 64, 256), gb_per_s)


def _layers(layers: list[ExpertWeights], numbers: tuple[int, ...], gb_per_s: float) -> None:
    """The whole layer from the norm on, at numbers of rows."""
    norm = torch.ones(HIDDEN, dtype=DTYPE, device=DEVICE)
    routers = [torch.randn((NUM_EXPERTS, HIDDEN), device=DEVICE).to(DTYPE) for _ in layers]
    modules = [
        Experts(
            norm, 1e-6, Router(router, None, RoutingRules(TOP_K, over_chosen=True)), weights, None
        )
        for router, weights in zip(routers, layers, strict=True)
    ]
    for rows in numbers:
        x = torch.randn((4 * LAYERS, 2, rows, HIDDEN), device=DEVICE).to(DTYPE)
        microseconds = graph_us(partial(_call, modules, x), 4 * LAYERS)
        taken = NUM_EXPERTS * (1 - (1 - TOP_K / NUM_EXPERTS) ** rows)
        bound = round(taken * EXPERT_BYTES / gb_per_s / 1e3, 1)
        print("layer", rows, "rows", microseconds, "bound", bound, round(microseconds / bound, 2))


def _call(modules: list[Experts], x: torch.Tensor, index: int) -> object:
    return modules[index % LAYERS](*x[index])


DECODE_TILES: list[Sides] = [
    (64, 64, 4, 4),
    (64, 128, 3, 4),
    (32, 128, 4, 4),
    (128, 64, 4, 8),
]
PREFILL_TILES: list[Sides] = [
    (64, 64, 3, 4),
    (64, 64, 4, 4),
    (64, 64, 4, 8),
    (128, 64, 3, 8),
    (128, 64, 4, 8),
    (128, 64, 3, 8, MORE_PAIRS),
    (128, 64, 4, 8, MORE_PAIRS),
]
"""Rows, depth, stages and warps of tiles, and `more` where it is not 0."""


def grouped(rows: int, sizes: list[int], tiles: list[Sides], gb_per_s: float) -> None:
    """Tiles of the grouped products, and what is around them."""
    layers = [some_weights(NUM_EXPERTS, HIDDEN, INNER) for _ in range(LAYERS)]
    x = torch.randn((rows, HIDDEN), device=DEVICE).to(DTYPE)
    routing = some_routing(rows, NUM_EXPERTS, TOP_K)
    groups = group_pairs(routing.ids, NUM_EXPERTS)
    inner = torch.randn((rows * TOP_K, INNER), device=DEVICE).to(DTYPE)
    taken = NUM_EXPERTS * (1 - (1 - TOP_K / NUM_EXPERTS) ** rows)
    bound = taken * EXPERT_BYTES / gb_per_s / 1e3
    tera = rows * TOP_K * EXPERT_BYTES / 1e12

    def run(tile: Tile, gate: str | None, index: int) -> object:
        weights = layers[index % LAYERS]
        assert isinstance(weights.gate_up, DenseExpertProduct)
        assert isinstance(weights.down, DenseExpertProduct)
        if gate is None:
            return grouped_linear(inner, weights.down, None, groups, TOP_K, None, tile)
        return grouped_linear(x, weights.gate_up, None, groups, TOP_K, gate, tile)

    for name, gate, share in (("gate_up", SILU, 2 / 3), ("down", None, 1 / 3)):
        for pairs in sizes:
            for sides in tiles:
                tile = Tile(pairs, *sides)
                try:
                    microseconds = graph_us(partial(run, tile, gate))
                except Exception as error:  # out of shared memory
                    print(name, rows, tuple(tile), type(error).__name__)
                    continue
                rate = round(share * tera / microseconds * 1e6)
                line = (round(microseconds, 1), "bound", round(share * bound, 1), rate, "TFLOP/s")
                print(name, rows, "rows", tuple(tile), *line)
    products = torch.empty((rows * TOP_K, HIDDEN), dtype=DTYPE, device=DEVICE)
    logits = torch.randn((rows, NUM_EXPERTS), device=DEVICE)
    around: dict[str, Call] = {
        "choose": lambda _: choose_experts(logits, RoutingRules(TOP_K, over_chosen=True)),
        "group": lambda _: group_pairs(routing.ids, NUM_EXPERTS),
        "sums": lambda _: weighted_sums(products, routing, None),
    }
    print(rows, "rows", {name: graph_us(call) for name, call in around.items()})


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="check,few,decode-64,decode-256,prefill")
    args = parser.parse_args()
    gb_per_s = copy_gb_per_s()
    print("copy", round(gb_per_s), "GB/s", torch.cuda.get_device_name())
    parts: dict[str, Callable[[], None]] = {
        "check": check,
        "few": partial(few, gb_per_s),
        "decode-64": partial(grouped, 64, [16], DECODE_TILES, gb_per_s),
        "decode-256": partial(grouped, 256, [16, 32], DECODE_TILES, gb_per_s),
        "prefill": partial(grouped, 4096, [128], PREFILL_TILES, gb_per_s),
    }
    for part in args.parts.split(","):
        with torch.inference_mode():
            parts[part]()


if __name__ == "__main__":
    main()
