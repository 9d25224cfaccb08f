"""Prometheus metrics: vLLM's names behind a prefix, of the engine and of every request."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from engine.client import EngineHandle
from engine.planning.timings import SECONDS
from server.engine_metrics import EngineCollector

OUTCOMES = ("success", "client_error", "rejected", "server_error", "abort")
FINISHES = ("stop", "length", "abort", "error")

_TOKENS = tuple(10**e * m for e in range(6) for m in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """The server's own counters and histograms; the engine's numbers are read when scraped."""

    def __init__(self, model_name: str, engine: EngineHandle, *, prefix: str = "tailrace_") -> None:
        self.registry = CollectorRegistry()
        self._prefix = prefix
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        labels = {"model_name": model_name, "engine": "0"}
        self._labels = labels
        self.registry.register(EngineCollector(engine, labels, prefix))

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
        self.inter_token = seconds("inter_token_latency_seconds", "Between a stream's chunks")
        self.prompt_lens = tokens("request_prompt_tokens", "Prompt tokens")
        self.generation_lens = tokens("request_generation_tokens", "Drawn tokens of a choice")
        self.params_max_tokens = tokens("request_params_max_tokens", "`max_tokens` of requests")
        self.params_n = self._histogram(_CHOICES)("request_params_n", "`n` of requests")
        words = "Connections beyond what the limit of open files allows"
        self.connections_over_limit = self._counter("connections_over_limit", words).labels(
            **labels
        )
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
        return Counter(f"{self._prefix}{name}", words, names, registry=self.registry)

    def _histogram(self, buckets: tuple[float, ...]) -> Callable[[str, str], Histogram]:
        def make(name: str, words: str) -> Histogram:
            names = list(self._labels)
            family = Histogram(
                f"{self._prefix}{name}", words, names, buckets=buckets, registry=self.registry
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
