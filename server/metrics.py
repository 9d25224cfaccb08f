"""Prometheus metrics: vLLM's names with the prefix `tailrace_`, and an account of every request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.client import EngineHandle
from engine.planning.timings import SECONDS, STEP_TOKENS, Timings
from engine.stats import DraftStats, EngineStats, HistogramStats, TimingStats

OUTCOMES = ("success", "client_error", "rejected", "server_error", "abort")
FINISHES = ("stop", "length", "abort", "error")

NO_STATS = EngineStats(
    num_running=0,
    num_waiting=0,
    kv_blocks_used=0,
    kv_blocks_total=0,
    num_steps=0,
    num_preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
    prompt_tokens_computed=0,
    nan_rows=0,
    timings=Timings().stats(),
)
"""Before the first step."""

_TIMES = {
    "queue": "Until a choice got a row",
    "prefill": "From there to its first token",
    "decode": "From there to its last",
    "inference": "From its row to its last token",
}
_TOKENS = tuple(10**e * m for e in range(6) for m in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """The server's own counters and histograms; the engine's numbers are read when scraped."""

    def __init__(self, model_name: str, engine: EngineHandle) -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": model_name, "engine": "0"}
        self._labels = labels
        self.registry.register(_EngineCollector(engine, labels))

        received = self._counter("requests_received", "Generation requests received")
        outcomes = self._counter("request_outcomes", "How each one ended", "outcome")
        success = self._counter("request_success", "Choices by their end", "finished_reason")
        self.received = received.labels(**labels)
        self.outcomes = {o: outcomes.labels(**labels, outcome=o) for o in OUTCOMES}
        self.finished = {f: success.labels(**labels, finished_reason=f) for f in FINISHES}
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens").labels(**labels)
        self.generation_tokens = self._counter("generation_tokens", "Drawn tokens").labels(**labels)

        seconds, tokens = self._histogram(SECONDS), self._histogram(_TOKENS)
        self.e2e = seconds("e2e_request_latency_seconds", "Whole request")
        self.first_token = seconds("time_to_first_token_seconds", "Until a stream's first chunk")
        self.inter_token = seconds("inter_token_latency_seconds", "Between a stream's chunks")
        self.prompt_lens = tokens("request_prompt_tokens", "Prompt tokens")
        self.generation_lens = tokens("request_generation_tokens", "Drawn tokens of a choice")
        self.params_max_tokens = tokens("request_params_max_tokens", "`max_tokens` of requests")
        self.params_n = self._histogram(_CHOICES)("request_params_n", "`n` of requests")
        self._http = Counter(
            *("http_requests", "HTTP requests", ["handler", "method", "status"]),
            registry=self.registry,
        )
        self._http_seconds = Histogram(
            *("http_request_duration_seconds", "HTTP requests", ["handler", "method"]),
            buckets=SECONDS,
            registry=self.registry,
        )

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        names = [*self._labels, *labels]
        return Counter(f"tailrace_{name}", words, names, registry=self.registry)

    def _histogram(self, buckets: tuple[float, ...]) -> Callable[[str, str], Histogram]:
        def make(name: str, words: str) -> Histogram:
            names = list(self._labels)
            family = Histogram(
                f"tailrace_{name}", words, names, buckets=buckets, registry=self.registry
            )
            return family.labels(**self._labels)

        return make

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP request."""
        self._http.labels(handler, method, str(status)).inc()
        self._http_seconds.labels(handler, method).observe(seconds)

    def exposition(self) -> bytes:
        """The text Prometheus reads."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """The engine's latest statistics, as of the scrape."""

    def __init__(self, engine: EngineHandle, labels: dict[str, str]) -> None:
        self._engine = engine
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        failed = self._engine.failure() is not None
        yield self._gauge("engine_up", "1 while the engine can serve", float(not failed))
        stats = self._engine.stats or NO_STATS
        used = stats.kv_blocks_used / max(stats.kv_blocks_total, 1)
        yield self._gauge("num_requests_running", "Choices running", stats.num_running)
        yield self._gauge("num_requests_waiting", "Choices waiting", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", used)
        yield self._gauge("kv_blocks_used", "KV blocks in use", stats.kv_blocks_used)
        yield from self._counters(stats)
        yield from self._timings(stats.timings)

    def _timings(self, timings: TimingStats) -> Iterable[Metric]:
        for name, words in _TIMES.items():
            found: HistogramStats = getattr(timings, name)
            yield self._histogram(f"request_{name}_time_seconds", words, SECONDS, found)
        steps = "iteration_tokens_total", "Tokens of a step of generation"
        yield self._histogram(*steps, STEP_TOKENS, timings.step_tokens)

    def _histogram(
        self, name: str, words: str, bounds: Sequence[float], found: HistogramStats
    ) -> Metric:
        names = [*map(floatToGoString, bounds), "+Inf"]
        buckets = list(zip(names, accumulate(found.counts), strict=True))
        family = HistogramMetricFamily(f"tailrace_{name}", words, labels=self._names)
        family.add_metric(self._values, buckets, found.total)
        return family

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"tailrace_{name}", words, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counters(self, stats: EngineStats) -> Iterable[Metric]:
        counts = {
            "engine_steps": (stats.num_steps, "Steps of the engine"),
            "num_preemptions": (stats.num_preemptions, "Choices preempted"),
            "prefix_cache_queries": (stats.prefix_cache_queries, "Tokens looked up"),
            "prefix_cache_hits": (stats.prefix_cache_hits, "Tokens found"),
            "prompt_tokens_computed": (stats.prompt_tokens_computed, "Prompt tokens computed"),
            "nan_rows": (stats.nan_rows, "Choices ended by unusable logits"),
            "failed_steps": (stats.failed_steps, "Steps that raised, as when memory ran out"),
        }
        for name, (value, words) in counts.items():
            family = CounterMetricFamily(f"tailrace_{name}", words, labels=self._names)
            family.add_metric(self._values, value)
            yield family
        rows = CounterMetricFamily(
            "tailrace_sampler_rows", "Rows by sampling path", labels=[*self._names, "path"]
        )
        for path, value in stats.sampler_rows.items():
            rows.add_metric([*self._values, path], value)
        yield rows
        if stats.drafts is not None:
            yield from self._drafts(stats.drafts)

    def _drafts(self, drafts: DraftStats) -> Iterable[Metric]:
        counts = {
            "num_drafts": (drafts.num_drafts, "Steps of a choice that verified drafts"),
            "num_draft_tokens": (drafts.num_draft_tokens, "Drafts verified"),
            "num_accepted_tokens": (drafts.num_accepted, "Drafts kept"),
        }
        for name, (value, words) in counts.items():
            family = CounterMetricFamily(f"tailrace_spec_decode_{name}", words, labels=self._names)
            family.add_metric(self._values, value)
            yield family
        by_place = CounterMetricFamily(
            "tailrace_spec_decode_num_accepted_tokens_per_pos",
            "Drafts kept by their place in the step",
            labels=[*self._names, "position"],
        )
        for place, value in enumerate(drafts.accepted_at):
            by_place.add_metric([*self._values, str(place)], value)
        yield by_place
