"""The mixers of one layer that keeps a state: decode, verification and prefill.

    python -m benchmarks.bench_recurrent

Times are of replayed CUDA graphs over the layers' states, beside the time of reading and writing
the matrices once: the least that decode can take. Prefill is beside the time of its tokens' inputs
and outputs. Prints a line a case; the last line is JSON.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch

from benchmarks.bench_attention import COPY_GB_PER_S, DEVICE, LAYERS, layers_us
from engine.kernels.recurrent.convolution import Convolution, causal_convolution, ring_length
from engine.kernels.recurrent.matrices import (
    Drafted,
    HeadWeights,
    Matrices,
    Rule,
    TokenInputs,
    drafted_length,
)
from engine.kernels.recurrent.recurrence import recurrence
from engine.memory.state_rows import Extent, StateRows

WIDTH = 4
MAX_DRAFTS = 3
BF16 = torch.bfloat16


class Shape(NamedTuple):
    """A layer's recurrence."""

    heads: int
    key_heads: int
    k: int
    v: int
    delta: bool

    @property
    def channels(self) -> int:
        """What its convolution takes."""
        return 2 * self.key_heads * self.k + self.heads * self.v

    @property
    def matrix_bytes(self) -> int:
        """A row's."""
        return 4 * self.heads * self.k * self.v


SHAPES = {
    "qwen3.6-27b": Shape(48, 16, 128, 128, delta=True),
    "qwen3.6-35b-a3b": Shape(32, 16, 128, 128, delta=True),
    "olmo-hybrid-7b": Shape(30, 30, 96, 192, delta=True),
    "nemotron-3-nano": Shape(64, 8, 128, 64, delta=False),
}
DECODES = ((1, 1), (1, 4), (64, 1), (256, 1), (64, 4))
"""Rows, and tokens of each."""
PREFILLS = ((16, 512), (1, 8192), (1, 512))


class Layer:
    """The states of some rows of one layer, and the inputs of a step of them."""

    def __init__(self, shape: Shape, rows: int, tokens: int, device: torch.device = DEVICE) -> None:
        heads, key_heads, k, v, delta = shape
        slots, count, length = rows + 1, rows * tokens, drafted_length(MAX_DRAFTS)
        self.shape, self.rule = shape, Rule(delta, k**-0.5 if delta else 1.0)
        self.mixed = torch.randn(count, shape.channels, dtype=BF16, device=device)
        self.kernel = Convolution(torch.randn(shape.channels, WIDTH, dtype=BF16, device=device))
        self.a, self.b = torch.randn(2, count, heads, dtype=BF16, device=device)
        own = torch.zeros(heads, device=device)
        self.weights = HeadWeights(own, own, None if delta else own)
        self.ring = torch.zeros(
            slots, ring_length(WIDTH, MAX_DRAFTS), shape.channels, dtype=BF16, device=device
        )
        self.memory = Matrices(
            torch.zeros(slots, heads, v, k, device=device),
            Drafted(
                torch.zeros(slots, length, key_heads, k, dtype=BF16, device=device),
                torch.zeros(slots, length, heads, v, dtype=BF16, device=device),
                torch.zeros(slots, length, heads, device=device),
                torch.zeros(slots, length, heads, device=device),
            ),
        )

    def compute(self, rows: StateRows, extent: Extent) -> None:
        """The convolution, then the recurrence."""
        mixed = causal_convolution(self.mixed, self.kernel, self.ring, rows, extent)
        recurrence(self.inputs(mixed), self.rule, self.weights, self.memory, rows, extent)

    def inputs(self, mixed: torch.Tensor) -> TokenInputs:
        """The recurrence's, of what was convolved [T, channels]."""
        heads, key_heads, k, v, _ = self.shape
        widths = [key_heads * k, key_heads * k, heads * v]
        q, keys, values = torch.split(mixed, widths, dim=1)
        return TokenInputs(
            q.view(-1, key_heads, k),
            keys.view(-1, key_heads, k),
            values.view(-1, heads, v),
            self.a,
            self.b,
        )


def case_us(shape: Shape, rows: int, tokens: int, standing: int | None) -> float:
    """A layer's time; rows that decode replay as many drafts as they bring."""
    layers = [Layer(shape, rows, tokens) for _ in range(LAYERS)]
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device=DEVICE)
    begins = 512 if standing else 0
    table = StateRows(
        starts=torch.arange(rows + 1, dtype=torch.int32, device=DEVICE) * tokens,
        begins=torch.full((rows,), begins, device=DEVICE),
        sources=slots,
        slots=slots,
        replays=torch.full_like(slots, tokens - 1 if standing else 0),
        snapshot_ends=torch.full((rows, 1), 1 << 60, device=DEVICE),
        snapshot_slots=torch.zeros(rows, 1, dtype=torch.int32, device=DEVICE),
    )
    extent = Extent(tokens, standing)
    return layers_us(lambda layer: layers[layer].compute(table, extent))


def main() -> None:
    """Every case, and what moving its bytes takes."""
    results: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        for kind, cases in (("decode", DECODES), ("prefill", PREFILLS)):
            for rows, tokens in cases:
                moved = 2 * rows * shape.matrix_bytes
                if kind == "prefill":
                    moved += 8 * rows * tokens * shape.channels  # both kernels read and write
                bound = moved / COPY_GB_PER_S / 1e3
                us = case_us(shape, rows, tokens, 1 if kind == "decode" else None)
                results.append(
                    {"shape": name, "kind": kind, "rows": rows, "tokens": tokens}
                    | {"us": round(us, 1), "bound_us": round(bound, 1)}
                )
                print(
                    f"{name:16} {kind:8} {rows:4} rows of {tokens:5}: {us:8.1f} us a layer, "
                    f"{us / bound:6.2f} x its bytes"
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
