"""Prometheus metrics: vLLM's names after a prefix, of the engine and of every request.

Several fronts count in files that all of them read (`prometheus_client`'s multiprocess mode), so
whichever is asked reports all, and what a front that died had counted stays. Numbers of the engine
are reported once, by the front that is asked, and those of processes apart, with a label.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from engine.client import EngineHandle
from engine.planning.timings import SECONDS
from server.engine_metrics import EngineCollector
from server.fronts import FrontTable

OUTCOMES = ("success", "client_error", "rejected", "server_error", "abort")
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder of the files in which several fronts count; it is set before
`prometheus_client` is imported."""
FINISHES = ("stop", "length", "abort", "error")

QUEUE_LIMIT = "max_num_queued_reqs"
"""vLLM's name of what `--max-waiting-requests` bounds."""
DECISIONS = ("predicate", "choice", "score")
_MASSES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_TOKENS = tuple(10**e * m for e in range(6) for m in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
COUNTED_TOGETHER = 64
"""Gaps between chunks; where there are several fronts, to count one writes to a file, 3 us."""


class GapHistogram:
    """A histogram of gaps between chunks, which are counted many at a time."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._gaps: list[float] = []

    def observe(self, gap_s: float) -> None:
        """Count a gap, now or with later ones."""
        self._gaps.append(gap_s)
        if len(self._gaps) >= COUNTED_TOGETHER:
            self.count()

    def count(self) -> None:
        """Count the gaps that wait, as the histogram's own `observe` would."""
        histogram, gaps = self._histogram, self._gaps
        histogram._sum.inc(sum(gaps))
        buckets = np.searchsorted(histogram._upper_bounds, gaps)  # the first that is not below
        for bucket, count in enumerate(np.bincount(buckets).tolist()):
            if count:
                histogram._buckets[bucket].inc(count)
        gaps.clear()


class Metrics:
    """The server's own counters and histograms; the engine's numbers are read when scraped."""

    def __init__(
        self,
        model_name: str,
        engine: EngineHandle,
        fronts: FrontTable,
        *,
        prefix: str = "tailrace_",
    ) -> None:
        self.registry = CollectorRegistry()
        self._prefix = prefix
        labels = {"model_name": model_name, "engine": "0"}
        self._labels = labels
        self._shown = self._shown_registry(fronts)
        PlatformCollector(registry=self._shown)
        self._shown.register(EngineCollector(engine, labels, prefix))

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
        gaps = seconds("inter_token_latency_seconds", "Between a stream's chunks")
        self.inter_token = GapHistogram(gaps)
        self.prompt_lens = tokens("request_prompt_tokens", "Prompt tokens")
        self.generation_lens = tokens("request_generation_tokens", "Drawn tokens of a choice")
        self.most_generated = tokens(
            "request_max_num_generation_tokens", "Drawn tokens of a request's longest choice"
        )
        self.params_max_tokens = tokens("request_params_max_tokens", "`max_tokens` of requests")
        self.params_n = self._histogram(_CHOICES)("request_params_n", "`n` of requests")
        turned_away = self._counter(
            "admission_rejections", "Requests that the queue's limit turned away", "reason"
        )
        self.turned_away = turned_away.labels(**labels, reason=QUEUE_LIMIT)
        self._make_decision_metrics()
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

    def _make_decision_metrics(self) -> None:
        """Make those of questions that were answered with probabilities."""
        labels, counter = self._labels, self._counter
        decisions = counter("decisions", "Questions answered with probabilities", "type")
        self.decisions = {kind: decisions.labels(**labels, type=kind) for kind in DECISIONS}
        words = "Labels read for decisions, once for each order of a question's options"
        self.decision_labels = counter("decision_labels", words).labels(**labels)
        self.decision_label_mass = self._histogram(_MASSES)(
            "decision_label_mass", "Probability that a reply begins with one of the labels"
        )
        words = "Prompt tokens of decisions that were found computed"
        self.decision_cached_tokens = counter("decision_cached_tokens", words).labels(**labels)

    def _shown_registry(self, fronts: FrontTable) -> CollectorRegistry:
        """What a scrape shows: this front's counts and process, or those of all fronts."""
        if fronts.num_fronts == 1:
            ProcessCollector(registry=self.registry)
            GCCollector(registry=self.registry)
            return self.registry
        shown = CollectorRegistry()
        MultiProcessCollector(shown, os.environ[SHARED_FOLDER])  # type: ignore[no-untyped-call]
        shown.register(FrontProcesses(fronts))
        return shown

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
        return generate_latest(self._shown)


class FrontProcesses(Collector):
    """Collects memory, CPU time and files of every front's process."""

    def __init__(self, fronts: FrontTable) -> None:
        self._fronts = fronts

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for front, pid in self._fronts.pids.items():
            for found in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                family = Metric(found.name, found.documentation, found.type)
                family = families.setdefault(found.name, family)
                for sample in found.samples:
                    family.add_sample(sample.name, {"front": str(front)}, sample.value)
        return families.values()
