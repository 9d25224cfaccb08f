"""Figures of one pass: rates, and percentiles of what its requests took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.bench.exchange import Exchange
from server.bench.load import ShareResult

Figures = dict[str, float]
Curves = dict[str, list[tuple[float, float]]]
"""By name, percents and values in seconds; `gap_counts` lower bounds of buckets and counts."""

PERCENTS = (50, 90, 99)
"""Percentiles among the figures."""
CURVE = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
"""Percentiles of the curves that are drawn."""
GAP_EDGES_S = np.geomspace(1e-5, 1e2, 7 * 20 + 1)
"""Bounds of the histogram of gaps, 20 buckets a decade, in seconds."""


def figures(results: Sequence[ShareResult], num_counted: int) -> Figures:
    """The figures of one pass, over requests without an error.

    Seconds run from the common start to the end of the last reply; requests a second count
    `num_counted` for each. Percentiles are over requests, `gap` over all gaps between chunks:
    `first_token` from sending to the first chunk, `token` the mean time of a stream's later tokens,
    `longest_gap` a stream's longest wait between two chunks; streams of one token have neither.
    Times in seconds. `cached_share` is of input tokens, where the server reports them.
    """
    done = [each for each in exchanges(results) if each.error is None]
    seconds = max(result.seconds for result in results)
    found: Figures = {"seconds": seconds, "client_busy": max(each.busy for each in results)}
    if not done or seconds <= 0.0:
        return found
    found |= {
        "requests_per_s": len(done) * num_counted / seconds,
        "output_tokens_per_s": sum(each.output_tokens for each in done) / seconds,
        "input_tokens_per_s": sum(each.input_tokens for each in done) / seconds,
    }
    cached = [each.cached_tokens for each in done if each.cached_tokens is not None]
    if cached:
        found["cached_share"] = sum(cached) / max(1, sum(each.input_tokens for each in done))
    streams = [each for each in done if each.first_token_s is not None]
    if streams:
        found["chunks_per_s"] = sum(each.num_chunks for each in streams) / seconds
    for name, values in samples(done).items():
        found |= {f"{name}_p{percent}_s": percentile(values, percent) for percent in PERCENTS}
    return found


def exchanges(results: Sequence[ShareResult]) -> list[Exchange]:
    """The exchanges of all processes."""
    return [exchange for result in results for exchange in result.exchanges]


def errors(results: Sequence[ShareResult]) -> dict[str, int]:
    """How often each error happened, the most frequent first."""
    errors = Counter(each.error for each in exchanges(results) if each.error is not None)
    return dict(errors.most_common())


def samples(done: Sequence[Exchange]) -> dict[str, NDArray[np.float64]]:
    """Sorted values, in seconds, that percentiles are taken of; streams have more of them."""
    found = {"latency": [each.seconds for each in done]}
    streams = [each for each in done if each.first_token_s is not None]
    if streams:
        found["first_token"] = [each.first_token_s or 0.0 for each in streams]
        going_on = [each for each in streams if each.output_tokens != 1]
        found["token"] = [each.streaming_s / max(1, each.output_tokens - 1) for each in going_on]
        found["longest_gap"] = [max(each.gaps, default=0.0) for each in going_on]
    sorted_values = {name: np.sort(np.array(values)) for name, values in found.items() if values}
    if gaps := [each.gaps for each in streams if each.gaps]:
        sorted_values["gap"] = np.sort(np.concatenate([np.asarray(each) for each in gaps]))
    return sorted_values


def percentile(values: NDArray[np.float64], percent: float) -> float:
    """The value at `percent` of sorted ones: one of them, never between two."""
    return float(values[min(int(len(values) * percent / 100), len(values) - 1)])


def curves(results: Sequence[ShareResult]) -> Curves:
    """What is drawn of a pass: percentiles by name, and the histogram of gaps between chunks."""
    done = [each for each in exchanges(results) if each.error is None]
    found: Curves = {}
    for name, values in samples(done).items():
        found[name] = [(percent, percentile(values, percent)) for percent in CURVE]
        if name == "gap":
            found["gap_counts"] = _gap_counts(values)
    return found


def _gap_counts(values: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Buckets from the first to the last that has a gap; the outermost take what is beyond."""
    counts, _ = np.histogram(np.clip(values, GAP_EDGES_S[0], GAP_EDGES_S[-1]), GAP_EDGES_S)
    held = np.flatnonzero(counts)
    return [(float(GAP_EDGES_S[i]), int(counts[i])) for i in range(held[0], held[-1] + 1)]
