"""Rows of the terminal's table, and the lines that say when not to trust them."""

from __future__ import annotations

import pytest

from server.bench.results import Pass, Point
from server.bench.table import header, lines, number
from tests.server.bench.made import point


def with_figures(workload: str, **figures: float) -> Point:
    one = Pass(figures={"seconds": 1.0, "client_busy": 0.1} | figures)
    return Point(
        workload=workload,
        concurrency=4,
        rate=None,
        num_requests=1,
        passes=[one],
        best=0,
        curves={},
    )


def test_columns_stand_below_their_titles() -> None:
    (row,) = lines(point("stream", 4, 12345.0))
    assert len(row) == len(header())
    assert row[: header().index("req/s") + 5].split() == ["stream", "4", "12,345"]
    assert row.split()[-1] == "-"


def test_notes() -> None:
    assert list(lines(point("stream", 4, 1.0, errors={"500: x": 2})))[1:] == [
        "    failed 2 x: 500: x"
    ]
    all_failed = lines(with_figures("stream", client_busy=1.0))
    assert len(list(all_failed)) == 1
    busy = list(lines(with_figures("stream", client_busy=0.93, requests_per_s=2.0)))[1:]
    assert busy == ["    a client process computed 93% of the time: raise --processes"]
    cached = list(lines(with_figures("stream", cached_share=0.5)))[1:]
    assert cached == ["    50% of the prompts' tokens were cached: run with another --seed"]
    assert len(list(lines(with_figures("score-prefix", cached_share=0.9)))) == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (0.00123, "0.0012"), (0.25, "0.250"), (12.345, "12.35"), (1e6, "1,000,000")],
)
def test_numbers(value: float, words: str) -> None:
    assert number(value) == words
