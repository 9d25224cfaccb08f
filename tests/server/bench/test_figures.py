"""Figures of known requests, worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from server.bench.exchange import Exchange
from server.bench.figures import CURVE, curves, errors, figures, percentile
from tests.server.bench.made import share, stream


def test_streams() -> None:
    found = figures(
        [share(stream(0.5, 0.1, 0.3), seconds=2.0), share(stream(0.7, 1.3, tokens=5), seconds=1.5)],
        num_counted=1,
    )
    wanted = {
        "seconds": 2.0,
        "requests_per_s": 1.0,
        "output_tokens_per_s": (3 + 5) / 2.0,
        "input_tokens_per_s": 20 / 2.0,
        "chunks_per_s": (3 + 2) / 2.0,
        "latency_p50_s": 2.0,
        "first_token_p50_s": 0.7,
        "token_p99_s": 1.3 / 4,
        "longest_gap_p50_s": 1.3,
        "gap_p50_s": 0.3,
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert "cached_share" not in found


def test_a_stream_of_one_token_has_no_later_ones() -> None:
    """Prompts that arrive beside streams have one."""
    streams = [stream(0.5, 0.1, 0.3), stream(0.2, tokens=1), stream(0.3, tokens=1)]
    found = figures([share(*streams, seconds=2.0)], num_counted=1)
    assert (found["token_p50_s"], found["longest_gap_p50_s"]) == pytest.approx((0.2, 0.3))
    assert found["first_token_p50_s"] == 0.3
    alone = figures([share(*streams[1:], seconds=2.0)], num_counted=1)
    assert "token_p50_s" not in alone


def test_failed_requests_are_counted_and_not_measured() -> None:
    failed = [Exchange(sent_s=0.0, seconds=9.0, error=error) for error in ("a", "b", "b")]
    results = [share(stream(0.5), *failed, seconds=1.0)]
    assert errors(results) == {"b": 2, "a": 1}
    found = figures(results, num_counted=1)
    assert (found["requests_per_s"], found["latency_p99_s"]) == (1.0, 0.5)
    nothing = figures([share(*failed, seconds=1.0)], num_counted=1)
    assert nothing == {"seconds": 1.0, "client_busy": 0.1}
    assert curves([share(*failed, seconds=1.0)]) == {}


def test_a_request_may_count_as_many_and_tell_what_was_cached() -> None:
    done = Exchange(sent_s=0.0, seconds=1.0, input_tokens=8, cached_tokens=2)
    found = figures([share(done, seconds=2.0)], num_counted=100)
    assert (found["requests_per_s"], found["cached_share"]) == (50.0, 0.25)
    assert "first_token_p50_s" not in found


def test_percentiles_are_values_that_were_measured() -> None:
    values = np.arange(200.0)
    assert [percentile(values, p) for p in (0, 50, 99, 99.9, 100)] == [0, 100, 198, 199, 199]
    assert percentile(np.array([3.0]), 50) == 3.0


def test_curves() -> None:
    found = curves([share(stream(0.5, 0.1, 0.1, 0.3, 1e-9), seconds=1.0)])
    assert [percent for percent, _ in found["latency"]] == list(CURVE)
    held = [(bound, count) for bound, count in found["gap_counts"] if count]
    assert [count for _, count in held] == [1, 2, 1]
    for (bound, _), gap in zip(held, (1e-5, 0.1, 0.3), strict=True):
        assert gap / 10**0.051 < bound < gap * 1.001  # 20 a decade; 0.1 is itself a bound
    ratios = {round(b / a, 6) for (a, _), (b, _) in itertools.pairwise(found["gap_counts"])}
    assert ratios == {round(10**0.05, 6)}  # none is left out between them
