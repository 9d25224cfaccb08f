"""Results that were not measured."""

from __future__ import annotations

from array import array
from typing import Any

from server.bench.exchange import Exchange
from server.bench.figures import Figures
from server.bench.load import ShareResult
from server.bench.results import BenchResults, Pass, Point


def stream(first_s: float, *gaps_s: float, sent_s: float = 0.0, tokens: int = 0) -> Exchange:
    """A stream of a chunk and one after each gap, a token each unless reported otherwise."""
    streaming = sum(gaps_s)
    return Exchange(
        sent_s=sent_s,
        seconds=first_s + streaming,
        input_tokens=10,
        output_tokens=tokens or len(gaps_s) + 1,
        first_token_s=first_s,
        streaming_s=streaming,
        num_chunks=len(gaps_s) + 1,
        gaps=array("d", gaps_s),
    )


def share(*exchanges: Exchange, seconds: float, busy: float = 0.1) -> ShareResult:
    return ShareResult(exchanges=list(exchanges), seconds=seconds, busy=busy)


def point(workload: str, concurrency: int | None, *rates: float, **more: Any) -> Point:
    """A point of a pass for each rate, in requests a second; the last counts."""
    made: list[Figures] = [
        {"seconds": 1.0, "client_busy": 0.1, "requests_per_s": rate, "latency_p50_s": 1.0 / rate}
        for rate in rates
    ]
    errors = more.pop("errors", {})
    fields: dict[str, Any] = {"rate": None, "num_requests": 8, "curves": {}} | more
    return Point(
        workload=workload,
        concurrency=concurrency,
        passes=[Pass(figures=figures, errors=errors) for figures in made],
        best=len(made) - 1,
        **fields,
    )


def results(*points: Point, **fields: Any) -> BenchResults:
    about: dict[str, Any] = {
        "version": "1",
        "started": "2026-01-01T00:00:00+00:00",
        "base_url": "http://h:80",
        "model": "m",
        "processes": 2,
        "cores": 2,
        "platform": "x",
        "seed": 1,
        "vocab_size": 8000,
    }
    return BenchResults(points=list(points), **(about | fields))
