"""The sampler's figures: its times beside its peers', and the rare tokens that it draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import bench_sampling, gumbel_precision
from benchmarks.gumbel_precision import Line
from sampling.selftest.statistics import poisson

COMMAND = "python -m benchmarks.gumbel_precision --full"
ODDS = 1e-8
"""Odds of a false alarm, for each count of rare tokens."""


def sampling_figures() -> Iterator[dict[str, Any]]:
    """All figures of the sampler, on one GPU in one run."""
    yield from bench_sampling.figures()
    for line in gumbel_precision.measure(bench_sampling.DEVICE, full=True, seed=1):
        yield tail_figure(line)


def tail_figure(line: Line) -> dict[str, Any]:
    """The figure of a count of rare tokens; other noise need not reach any."""
    return {
        "name": f"tail: {line.noise}, {line.path}, {line.case}, {line.how}",
        "value": line.observed,
        "unit": f"wins of {line.expected:.1f} expected in {line.draws:,} draws",
        "sense": ">=",
        "must": least_wins(line) if line.noise.startswith("ours") else None,
        "bound": round(line.expected, 1),
        "command": COMMAND,
        "check": f"two-sided p {line.p_value:.1g}",
    }


def least_wins(line: Line) -> int:
    """The fewest wins that chance gives at odds of `ODDS`, by the same test as the count's."""
    count = int(line.expected)
    while count > 0 and poisson(count - 1, line.expected, ODDS).p_value >= ODDS:
        count -= 1
    return count
