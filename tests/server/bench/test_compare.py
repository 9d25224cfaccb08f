"""What two results have in common, and which differences their passes do not explain."""

from __future__ import annotations

from server.bench.compare import compare
from tests.server.bench.made import point, results


def rows(*lines: str) -> list[list[str]]:
    return [line.split() for line in lines]


def test_ratios_and_marks() -> None:
    a = results(point("stream", 4, 9.0, 10.0), point("burst", 8, 5.0), point("chat", 1, 1.0))
    b = results(
        point("stream", 4, 11.0, 12.0),
        point("burst", 8, 4.0),
        point("poisson", None, 1.0, rate=2.0),
    )
    lines = list(compare(a, b))
    assert rows(*lines[1:5]) == [
        ["stream", "4", "requests_per_s", "10.00", "12.00", "1.200", "*"],
        ["stream", "4", "latency_p50_s", "0.100", "0.0833", "0.833", "*"],
        ["burst", "8", "requests_per_s", "5.000", "4.000", "0.800"],
        ["burst", "8", "latency_p50_s", "0.200", "0.250", "1.250"],
    ]
    assert lines[5:] == ["only in A: chat at 1", "only in B: poisson at 2/s"]


def test_passes_that_overlap_are_not_told_apart() -> None:
    a, b = (results(point("stream", 4, *rates)) for rates in ((9.0, 11.0), (10.0, 12.0)))
    assert not any(line.endswith("*") for line in compare(a, b))


def test_conditions_and_failures_are_named() -> None:
    a = results(point("stream", 4, 1.0, 2.0, errors={"x": 3}))
    lines = list(compare(a, results(point("stream", 4, 2.0), model="n")))
    assert lines[0] == "note: model differs: m and n"
    assert lines[-1] == "    A: 6 requests failed; the figures are of the others"
