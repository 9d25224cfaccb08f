"""Kernels of layers that keep a state by themselves, in the launch shapes in use and in others.

    python -m benchmarks.bench_recurrent_kernels
    TRITON_INTERPRET=1 python -m benchmarks.bench_recurrent_kernels --dry

A line for each kernel, model and step, in microseconds: the bytes that it must move over the
bandwidth that a copy reaches; the shape in use; the best of the variants below and what it takes.
Each graph's states and inputs are more than a cache holds. `--dry` computes tiny ones on the CPU,
to see that all of it runs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.bench_attention import COPY_GB_PER_S
from benchmarks.bench_lora_kernels import (
    COLD,
    IN_USE,
    LEAST_COPIES,
    MOST_COPIES,
    Constants,
    Way,
    timed_us,
    using,
)
from benchmarks.bench_recurrent import BF16, SHAPES, WIDTH, Layer, Shape
from engine.kernels.recurrent import convolution, gated_norm
from engine.kernels.recurrent import recurrence_serial as serial
from engine.kernels.recurrent.convolution import TileShape, causal_convolution_triton
from engine.kernels.recurrent.gated_norm import GatedNorm, NormShape, gated_norm_triton
from engine.kernels.recurrent.recurrence_serial import recurrence_serial
from engine.memory.state_rows import Extent, StateRows
from sampling.device.compiling import compiling_together

MODELS = ("qwen3.6-27b", "qwen3.6-35b-a3b", "nemotron-3-nano")
TINY = {
    "delta": Shape(2, 1, 16, 16, delta=True),
    "space": Shape(2, 1, 16, 16, delta=False),
}
SERIAL, NORM, CONVOLUTION = ((1, 1), (256, 1), (64, 4)), (1, 256, 8192), ((1, 1), (256, 1))
"""Rows and tokens of each, of steps that decode; tokens."""
PROMPTS = (16, 512)
COLUMNS = ("model", "kernel", "rows", "tokens", "bound", IN_USE, "best", "best us")

SERIAL_SHAPES = (
    *((8, 128, blocks) for blocks in (1, 2, 4, 8, 16)),
    *((8, 96, blocks) for blocks in (1, 4, 16)),
    *((8, 168, blocks) for blocks in (1, 4, 16)),
    *((4, 80, blocks) for blocks in (1, 8, 32)),
)
"""Rows of a matrix, registers of a thread and blocks of a program."""
NORM_SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 4), (16, 4), (32, 4), (32, 8), (64, 8))
"""Groups and warps of a program."""
MOST_HELD = 32
"""Numbers of a group that a thread of a norm holds at most."""
DECODE_SHAPES = (
    *((128, 1), (128, 2), (128, 4), (256, 1), (256, 2), (512, 2), (512, 4)),
    *((1024, 4), (1024, 8), (2048, 8)),
)
"""Channels and warps of a program of rows that decode."""
PROMPT_SHAPES = (
    *((4, 512, 4), (4, 1024, 4), (8, 256, 2), (8, 512, 4), (8, 1024, 4), (8, 1024, 8)),
    *((16, 256, 2), (16, 512, 2), (16, 512, 4), (32, 512, 4)),
)
"""Tokens, channels and warps of a program of prompts."""


class Case(NamedTuple):
    """A kernel's work in a step.

    Attributes:
        moved: bytes that a launch must read and write. copies: launches of each way's work.
    """

    kernel: str
    rows: int
    tokens: int
    moved: int
    copies: int
    ways: Sequence[Way]


def copies_of(moved: int) -> int:
    """Launches of a graph, so that no cache holds what the last replay has left."""
    return max(LEAST_COPIES, min(MOST_COPIES, math.ceil(COLD / moved)))


def ways(work: Callable[[], None], variants: dict[str, Constants]) -> list[Way]:
    """The work in the shape in use and in others."""
    return [Way(name, constants, work) for name, constants in ({IN_USE: ()} | variants).items()]


def table_of(rows: int, tokens: int, device: torch.device) -> StateRows:
    """Rows that go on from their own slots and make no snapshot."""
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device=device)
    return StateRows(
        starts=torch.arange(rows + 1, dtype=torch.int32, device=device) * tokens,
        begins=torch.full((rows,), 512, device=device),
        sources=slots,
        slots=slots,
        replays=torch.zeros_like(slots),
        snapshot_ends=torch.full((rows, 2), 1 << 60, device=device),
        snapshot_slots=torch.zeros(rows, 2, dtype=torch.int32, device=device),
    )


def serial_case(shape: Shape, rows: int, tokens: int, copies: int | None, device: Any) -> Case:
    """The recurrence of rows that decode; those with drafts replay as many."""
    moved = 2 * rows * shape.matrix_bytes
    layers = [Layer(shape, rows, tokens, device) for _ in range(copies or copies_of(moved))]
    table = table_of(rows, tokens, device)
    table = table._replace(replays=torch.full_like(table.slots, tokens - 1))

    def work() -> None:
        for layer in layers:
            recurrence_serial(
                layer.inputs(layer.mixed),
                layer.rule,
                layer.weights,
                layer.memory,
                table,
                Extent(tokens, 1),
            )

    variants: dict[str, Constants] = {}
    for values, registers, blocks in SERIAL_SHAPES:
        if values * blocks <= max(shape.v, values):
            variants[f"{values} rows, {registers} registers, {blocks} blocks"] = (
                (serial, "VALUES", values),
                (serial, "REGISTERS", registers),
                (serial, "num_blocks", lambda *_, own=blocks: own),
            )
    return Case("recurrence", rows, tokens, moved, len(layers), ways(work, variants))


def norm_case(shape: Shape, tokens: int, copies: int | None, device: Any) -> Case:
    """The norm after a recurrence, of each head, or of the heads of a key head."""
    groups = shape.heads if shape.delta else shape.key_heads
    width = shape.heads * shape.v // groups
    moved = 3 * 2 * tokens * groups * width
    norm = GatedNorm(torch.ones(width, dtype=BF16, device=device), 1e-6, not shape.delta)
    some = partial(torch.randn, tokens, groups, width, dtype=BF16, device=device)
    pairs = [(some(), some()) for _ in range(copies or copies_of(moved))]

    def work() -> None:
        for x, gate in pairs:
            gated_norm_triton(norm, x, gate)

    variants: dict[str, Constants] = {}
    for each in (NormShape(*each) for each in NORM_SHAPES):
        if each.groups * width <= MOST_HELD * 32 * each.warps * (1 + (width > 256)):
            constants = ((gated_norm, "norm_shape", lambda *_, own=each: own),)
            variants[f"{each.groups} groups, {each.warps} warps"] = constants
    return Case("gated norm", tokens, 1, moved, len(pairs), ways(work, variants))


def convolution_case(
    shape: Shape, rows: int, tokens: int, copies: int | None, device: Any, *, decodes: bool
) -> Case:
    """The convolution of rows that decode, or of prompts."""
    moved = 2 * rows * shape.channels * (2 * tokens + (WIDTH if decodes else 0))
    layers = [Layer(shape, rows, tokens, device) for _ in range(copies or copies_of(moved))]
    table, extent = table_of(rows, tokens, device), Extent(tokens, 1 if decodes else None)

    def work() -> None:
        for layer in layers:
            causal_convolution_triton(layer.mixed, layer.kernel, layer.ring, table, extent)

    variants: dict[str, Constants] = {}
    for each in DECODE_SHAPES if decodes else PROMPT_SHAPES:
        tile = TileShape(*((tokens, *each) if decodes else each))
        name = f"{tile.tokens} x {tile.channels}, {tile.warps} warps"
        changed: Any = (lambda *_, own=tile: own) if decodes else tile
        variants[name] = ((convolution, "decode_shape" if decodes else "PROMPT", changed),)
    kernel = "convolution" if decodes else "convolution of prompts"
    return Case(kernel, rows, tokens, moved, len(layers), ways(work, variants))


def cases(shape: Shape, device: Any, copies: int | None, *, dry: bool) -> Iterator[Case]:
    """All cases of a model; `copies` are the launches of each graph, None as many as needed."""
    for rows, tokens in ((1, 1), (3, 2)) if dry else SERIAL:
        yield serial_case(shape, rows, tokens, copies, device)
    for tokens in (1, 3) if dry else NORM:
        yield norm_case(shape, tokens, copies, device)
    for rows, tokens in ((3, 1),) if dry else CONVOLUTION:
        yield convolution_case(shape, rows, tokens, copies, device, decodes=True)
    yield convolution_case(shape, *((2, 5) if dry else PROMPTS), copies, device, decodes=False)


def row_of(model: str, case: Case, *, on_gpu: bool) -> dict[str, Any]:
    """The line of a case: microseconds of a launch."""
    times = {}
    for name, constants, work in case.ways:
        with using(constants):
            times[name] = round(timed_us(work, on_gpu=on_gpu) / case.copies, 2)
    best = min(times, key=lambda name: times[name])
    sizes = {"model": model, "kernel": case.kernel, "rows": case.rows, "tokens": case.tokens}
    bound = round(case.moved / COPY_GB_PER_S / 1e3, 2)
    ours = {"bound": bound, IN_USE: times[IN_USE]}
    return sizes | ours | {"best": best, "best us": times[best], "variants": times}


def main() -> None:
    """Compile all kernels at once, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="tiny steps on the CPU")
    dry = parser.parse_args().dry
    models = TINY if dry else {name: SHAPES[name] for name in MODELS}
    device = torch.device("cpu" if dry else "cuda")
    started, rows = time.perf_counter(), []
    with compiling_together():
        for shape in () if dry else models.values():
            for case in cases(shape, device, 1, dry=dry):
                for _, constants, work in case.ways:
                    with using(constants):
                        work()
    print(f"compiled in {time.perf_counter() - started:.0f} s\n", *(f"{n:>16}" for n in COLUMNS))
    for model, shape in models.items():
        for case in cases(shape, device, 1 if dry else None, dry=dry):
            rows.append(row_of(model, case, on_gpu=not dry))
            print(*(f"{rows[-1][name]!s:>16}" for name in COLUMNS), flush=True)
    seconds = round(time.perf_counter() - started, 1)
    print(json.dumps({"device": str(device), "seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
