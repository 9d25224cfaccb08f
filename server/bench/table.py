"""Results as lines of a terminal: a row a point, and what has to be known to trust it."""

from __future__ import annotations

from collections.abc import Iterator

from server.bench.figures import Figures
from server.bench.results import Point

BUSY = 0.8
"""A client process that computes more of the time than this may be what is measured."""
CACHED = 0.2
"""A share of cached input tokens that makes prompts not fresh."""
SHARES_PROMPTS = ("score-prefix", "gscore")
"""Workloads whose prompts begin alike, so that most of them is cached."""

COLUMNS = (
    ("req/s", "requests_per_s", 1.0),
    ("out tok/s", "output_tokens_per_s", 1.0),
    ("in tok/s", "input_tokens_per_s", 1.0),
    ("p50 s", "latency_p50_s", 1.0),
    ("p99 s", "latency_p99_s", 1.0),
    ("first p50 ms", "first_token_p50_s", 1e3),
    ("first p99 ms", "first_token_p99_s", 1e3),
    ("ms a token", "token_p50_s", 1e3),
    ("gap p99 ms", "longest_gap_p99_s", 1e3),
)
"""Title, figure and factor of a column."""


def header() -> str:
    """The titles of the columns."""
    titles = "".join(f"{title:>{_width(title)}}" for title, _, _ in COLUMNS)
    return f"{'workload':<13}{'at':>7}{titles}"


def lines(point: Point) -> Iterator[str]:
    """The row of a point, and a line for each thing that is wrong with it."""
    row = f"{point.workload:<13}{point.where:>7}"
    yield row + "".join(_cell(point.figures, *column) for column in COLUMNS)
    yield from (f"    {note}" for note in notes(point))


def notes(point: Point) -> Iterator[str]:
    """What has to be known to trust a point's figures: failures, a busy client, cached prompts."""
    for error, count in point.errors.items():
        yield f"failed {count} x: {error}"
    if (busy := point.figures["client_busy"]) > BUSY and "requests_per_s" in point.figures:
        yield f"a client process computed {busy:.0%} of the time: raise --processes"
    cached = point.figures.get("cached_share", 0.0)
    if cached > CACHED and point.workload not in SHARES_PROMPTS:
        yield f"{cached:.0%} of the prompts' tokens were cached: run with another --seed"


def _cell(found: Figures, title: str, name: str, factor: float) -> str:
    value = found.get(name)
    return f"{'-' if value is None else number(value * factor):>{_width(title)}}"


def _width(title: str) -> int:
    return max(len(title), 7) + 2


def number(value: float) -> str:
    """A number with three to four digits that mean something, or all of those before the point."""
    if value == 0.0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    decimals = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3 if abs(value) >= 0.1 else 4
    return f"{value:.{decimals}f}"
