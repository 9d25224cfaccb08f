"""Two results side by side: what differs beyond the spread of their passes."""

from __future__ import annotations

from collections.abc import Iterator

from server.bench.results import BenchResults, Point
from server.bench.table import number

COMPARED = (
    *("requests_per_s", "output_tokens_per_s", "input_tokens_per_s"),
    *("latency_p50_s", "latency_p99_s", "first_token_p50_s", "first_token_p99_s"),
    *("token_p50_s", "token_p99_s", "longest_gap_p50_s", "longest_gap_p99_s"),
)
CONDITIONS = ("model", "seed", "vocab_size", "input_tokens", "output_tokens")
"""What should be the same in both."""

_Key = tuple[str, int | None, float | None]


def compare(a: BenchResults, b: BenchResults) -> Iterator[str]:
    """Lines of a table: every figure of the points that both have, and B over A.

    Two figures differ (`*`) where the passes of A and those of B do not overlap; one pass
    each says nothing about that.
    """
    for name in CONDITIONS:
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours != theirs:
            yield f"note: {name} differs: {ours} and {theirs}"
    ours, theirs = _by_key(a), _by_key(b)
    yield f"{'workload':<13}{'at':>7}  {'figure':<22}{'A':>11}{'B':>11}{'B / A':>9}"
    for key, point in ours.items():
        if key in theirs:
            yield from _rows(point, theirs[key])
    for name, own, other in (("A", ours, theirs), ("B", theirs, ours)):
        if alone := [f"{key[0]} at {own[key].where}" for key in own if key not in other]:
            yield f"only in {name}: {', '.join(alone)}"


def _by_key(results: BenchResults) -> dict[_Key, Point]:
    return {(each.workload, each.concurrency, each.rate): each for each in results.points}


def _rows(a: Point, b: Point) -> Iterator[str]:
    for name in COMPARED:
        if name in a.figures and name in b.figures:
            before, after = a.figures[name], b.figures[name]
            ratio = after / before if before else float("inf")
            mark = " *" if _differ(_values(a, name), _values(b, name)) else ""
            yield (
                f"{a.workload:<13}{a.where:>7}  {name:<22}"
                f"{number(before):>11}{number(after):>11}{ratio:>9.3f}{mark}"
            )
    for title, point in (("A", a), ("B", b)):
        if count := sum(point.errors.values()):
            yield f"    {title}: {count} requests failed; the figures are of the others"


def _values(point: Point, name: str) -> list[float]:
    return [each.figures[name] for each in point.passes if name in each.figures]


def _differ(a: list[float], b: list[float]) -> bool:
    """Whether two sets of several values lie apart."""
    return min(len(a), len(b)) > 1 and (max(a) < min(b) or max(b) < min(a))
