"""Float8 experts on the GPU: times of launches and layers beside bounds.

    python -m benchmarks.bench_fp8_experts --parts few,layers

Shape and method are those of `bench_experts`. Prints a line a measurement.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from benchmarks.bench_experts import (
    DEVICE,
    DTYPE,
    HIDDEN,
    INNER,
    LAYERS,
    NUM_EXPERTS,
    TOP_K,
    graph_us,
    some_routing,
)
from benchmarks.bench_sampling import copy_gb_per_s
from engine.kernels.experts.few_fp8 import down_few_fp8, gate_up_few_fp8
from engine.kernels.experts.gates import SILU
from engine.kernels.experts.layer import Experts, Router
from engine.kernels.experts.products import ExpertWeights, Fp8ExpertProduct
from engine.kernels.experts.routing import RoutingRules
from engine.kernels.fp8 import FP8
from engine.kernels.quantized.launch import LaunchShape

EXPERT_BYTES = 3 * HIDDEN * INNER


def some_weights(channels: int, width: int, *, by_spans: bool) -> Fp8ExpertProduct:
    """Random weights of all experts."""
    values = torch.empty((NUM_EXPERTS, channels, width), dtype=FP8, device=DEVICE)
    for expert in values:
        expert.copy_(torch.randn(expert.shape, device=DEVICE) * 100)
    shape = (NUM_EXPERTS, channels, width // 128) if by_spans else (NUM_EXPERTS, channels)
    return Fp8ExpertProduct(values, torch.full(shape, 0.01 * width**-0.5, device=DEVICE))


def some_layer(*, by_spans: bool) -> ExpertWeights:
    """Random experts of a layer."""
    gate_up = some_weights(2 * INNER, HIDDEN, by_spans=by_spans)
    down = some_weights(HIDDEN, INNER, by_spans=by_spans)
    return ExpertWeights(gate_up, down, None, None, SILU)


def few(gb_per_s: float, *, by_spans: bool) -> None:
    """Launches of the kernels for one row."""
    layers = [some_layer(by_spans=by_spans) for _ in range(LAYERS)]
    routings = [some_routing(1, NUM_EXPERTS, TOP_K) for _ in range(8 * LAYERS)]
    bound = TOP_K * EXPERT_BYTES / gb_per_s / 1e3
    x = torch.randn((1, HIDDEN), device=DEVICE).to(DTYPE)
    inner = torch.randn((TOP_K, INNER), device=DEVICE).to(DTYPE)
    first = layers[0]
    assert isinstance(first.gate_up, Fp8ExpertProduct)
    assert isinstance(first.down, Fp8ExpertProduct)
    rounds, rounds_inner = first.gate_up.rounded, first.down.rounded
    rows, inner_rows = rounds(x), rounds_inner(inner)

    def gate_up(shape: LaunchShape, index: int) -> object:
        weights = layers[index % LAYERS].gate_up
        assert isinstance(weights, Fp8ExpertProduct)
        return gate_up_few_fp8(rows, routings[index].ids, weights, None, SILU, DTYPE, shape)

    def down(shape: LaunchShape, index: int) -> object:
        weights = layers[index % LAYERS].down
        assert isinstance(weights, Fp8ExpertProduct)
        return down_few_fp8(inner_rows, routings[index], weights, None, None, DTYPE, shape)

    for channels, warps in [(1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (4, 8)]:
        us = graph_us(partial(gate_up, LaunchShape(channels, warps)), len(routings))
        print("gate_up", by_spans, (channels, warps), us, "bound", round(bound * 2 / 3, 2))
    for channels, warps in [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8)]:
        us = graph_us(partial(down, LaunchShape(channels, warps)), len(routings))
        print("down", by_spans, (channels, warps), us, "bound", round(bound / 3, 2))
    print("round x", graph_us(lambda _: rounds(x), 32))
    print("round inner", graph_us(lambda _: rounds_inner(inner), 32), flush=True)


def whole_layers(gb_per_s: float, *, by_spans: bool) -> None:
    """The whole layer from the norm on, at numbers of rows."""
    norm = torch.ones(HIDDEN, dtype=DTYPE, device=DEVICE)
    modules = []
    for _ in range(LAYERS):
        weights = some_layer(by_spans=by_spans)
        router = Router(
            torch.randn((NUM_EXPERTS, HIDDEN), device=DEVICE).to(DTYPE),
            None,
            RoutingRules(TOP_K, over_chosen=True),
        )
        modules.append(Experts(norm, 1e-6, router, weights, None))
    for rows in (1, 2, 4, 8, 64, 256, 4096):
        x = torch.randn((2 * LAYERS, 2, rows, HIDDEN), device=DEVICE).to(DTYPE)

        def call(index: int, x: torch.Tensor = x) -> object:
            return modules[index % LAYERS](*x[index])

        us = graph_us(call, 2 * LAYERS)
        taken = NUM_EXPERTS * (1 - (1 - TOP_K / NUM_EXPERTS) ** rows)
        bound = round(taken * EXPERT_BYTES / gb_per_s / 1e3, 1)
        rate = round(2 * rows * TOP_K * EXPERT_BYTES / us / 1e6)
        line = (us, "bound", bound, round(us / bound, 2), rate, "TFLOP/s")
        print("layer", by_spans, rows, "rows", *line, flush=True)


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="few,layers")
    args = parser.parse_args()
    gb_per_s = copy_gb_per_s()
    print("copy", round(gb_per_s), "GB/s", torch.cuda.get_device_name())
    parts = {
        "few": partial(few, gb_per_s, by_spans=False),
        "few-spans": partial(few, gb_per_s, by_spans=True),
        "layers": partial(whole_layers, gb_per_s, by_spans=False),
        "layers-spans": partial(whole_layers, gb_per_s, by_spans=True),
    }
    for part in args.parts.split(","):
        with torch.inference_mode():
            parts[part]()


if __name__ == "__main__":
    main()
