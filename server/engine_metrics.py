"""The engine's numbers as Prometheus metrics, read from its statistics when they are scraped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.client import EngineHandle
from engine.planning.timings import PREEMPTIONS, SECONDS, STEP_TOKENS, TOKEN_SECONDS, Timings
from engine.stats import (
    AdapterStats,
    DraftStats,
    EngineStats,
    GrammarStats,
    HistogramStats,
    SnapshotStats,
    TimingStats,
)

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


class EngineCollector(Collector):
    """Collects the engine's latest statistics when the metrics are scraped."""

    def __init__(self, engine: EngineHandle, labels: dict[str, str], prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        failed = self._engine.failure() is not None
        yield self._gauge("engine_up", "1 while the engine can serve", float(not failed))
        yield self._cache_config()
        stats = self._engine.stats or NO_STATS
        if not failed:  # what a dead engine said last is not its state
            yield from self._gauges(stats)
        yield from self._counters(stats)
        yield from self._timings(stats.timings)

    def _cache_config(self) -> Metric:
        """A gauge that is always 1, with the KV cache's configuration as labels."""
        info = self._engine.info
        about = {
            "block_size": info.block_size,
            "num_gpu_blocks": info.num_blocks,
            "cache_dtype": info.dtype if info.cache_dtype == "auto" else info.cache_dtype,
            "kv_cache_size_tokens": info.num_blocks * info.block_size,
            "kv_cache_max_concurrency": info.num_blocks * info.block_size / info.max_model_len,
        }
        words = "Configuration of the KV cache"
        family = GaugeMetricFamily(
            f"{self._prefix}cache_config_info", words, labels=[*self._names, *about]
        )
        family.add_metric([*self._values, *map(str, about.values())], 1.0)
        return family

    def _gauges(self, stats: EngineStats) -> Iterable[Metric]:
        used = stats.kv_blocks_used / max(stats.kv_blocks_total, 1)
        yield self._gauge("num_requests_running", "Choices running", stats.num_running)
        yield self._gauge("num_requests_waiting", "Choices waiting", stats.num_waiting)
        yield self._waiting(stats)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", used)
        yield self._gauge("kv_blocks_used", "KV blocks in use", stats.kv_blocks_used)
        snapshots = stats.snapshots or SnapshotStats()
        for name, words, value in (
            ("capacity", "Snapshots of states that there is memory for", snapshots.num_total),
            ("kept", "Snapshots of states that can be found", snapshots.num_kept),
            ("capacity_bytes", "Memory for snapshots of states, a rank", snapshots.total_bytes),
            ("kept_bytes", "Memory of snapshots that can be found", snapshots.kept_bytes),
        ):
            yield self._gauge(f"state_snapshots_{name}", words, value)
        if stats.adapters is not None:
            yield self._adapters(stats.adapters)
            words = "LoRA adapters in the host's memory"
            yield self._gauge("lora_adapters_held", words, stats.adapters.num_held)

    def _waiting(self, stats: EngineStats) -> Metric:
        """A gauge of the choices that wait, by what they wait for."""
        family = GaugeMetricFamily(
            f"{self._prefix}num_requests_waiting_by_reason",
            "Choices waiting: for a row and blocks (capacity), for a grammar or adapter (deferred)",
            labels=[*self._names, "reason"],
        )
        deferred = min(stats.num_deferred, stats.num_waiting)
        family.add_metric([*self._values, "capacity"], stats.num_waiting - deferred)
        family.add_metric([*self._values, "deferred"], deferred)
        return family

    def _adapters(self, stats: AdapterStats) -> Metric:
        """A gauge of the time, with the names of adapters as labels, as vLLM has it."""
        about = {
            "max_lora": str(stats.num_slots),
            "running_lora_adapters": ",".join(stats.running),
            "waiting_lora_adapters": ",".join(stats.waiting),
        }
        words = "LoRA adapters that requests have, and the seconds since 1970"
        family = GaugeMetricFamily(
            f"{self._prefix}lora_requests_info", words, labels=[*self._names, *about]
        )
        family.add_metric([*self._values, *about.values()], time.time())
        return family

    def _timings(self, timings: TimingStats) -> Iterable[Metric]:
        for name, words in _TIMES.items():
            found: HistogramStats = getattr(timings, name)
            yield self._histogram(f"request_{name}_time_seconds", words, SECONDS, found)
        first = "time_to_first_token_seconds", "From a prompt's arrival at the engine to its token"
        yield self._histogram(*first, SECONDS, timings.first_token)
        later = "request_time_per_output_token_seconds", "Between a choice's tokens, on the mean"
        yield self._histogram(*later, TOKEN_SECONDS, timings.later_token)
        lost = "request_num_preemptions", "Times that a choice lost its row"
        yield self._histogram(*lost, PREEMPTIONS, timings.preemptions)
        steps = "iteration_tokens_total", "Tokens of a step of generation"
        yield self._histogram(*steps, STEP_TOKENS, timings.step_tokens)

    def _histogram(
        self, name: str, words: str, bounds: Sequence[float], found: HistogramStats
    ) -> Metric:
        names = [*map(floatToGoString, bounds), "+Inf"]
        buckets = list(zip(names, accumulate(found.counts), strict=True))
        family = HistogramMetricFamily(f"{self._prefix}{name}", words, labels=self._names)
        family.add_metric(self._values, buckets, found.total)
        return family

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}{name}", words, labels=self._names)
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
            "no_token_allowed": (stats.empty_rows, "Choices whose own masks left no token"),
            "failed_steps": (stats.failed_steps, "Steps that raised, as when memory ran out"),
        }
        yield from self._named_counters("", counts)
        rows = CounterMetricFamily(
            f"{self._prefix}sampler_rows", "Rows by sampling path", labels=[*self._names, "path"]
        )
        for path, value in stats.sampler_rows.items():
            rows.add_metric([*self._values, path], value)
        yield rows
        if stats.drafts is not None:
            yield from self._drafts(stats.drafts)
        yield from self._grammars(stats.grammars or GrammarStats())
        snapshots = stats.snapshots or SnapshotStats()
        made = {
            "made": (snapshots.num_made, "Snapshots of states made to be found"),
            "hits": (snapshots.num_hits, "Choices and scores that began from a snapshot"),
            "evicted": (snapshots.num_evicted, "Snapshots that made room for others"),
        }
        yield from self._named_counters("state_snapshots_", made)
        if (adapters := stats.adapters) is not None:
            loads = {
                "slot_loads": (adapters.num_slot_loads, "Copies of adapters into slots"),
                "failed_readings": (adapters.num_failed, "Adapters that could not be read"),
            }
            yield from self._named_counters("lora_", loads)

    def _named_counters(
        self, prefix: str, counts: Mapping[str, tuple[float, str]]
    ) -> Iterable[Metric]:
        """Counters by name, each with its value and what it counts."""
        for name, (value, words) in counts.items():
            full_name = f"{self._prefix}{prefix}{name}"
            family = CounterMetricFamily(full_name, words, labels=self._names)
            family.add_metric(self._values, value)
            yield family

    def _grammars(self, grammars: GrammarStats) -> Iterable[Metric]:
        counts = {
            "compiles": (grammars.num_compiles, "Grammars compiled"),
            "compile_seconds": (grammars.compile_seconds, "Seconds of compiles, all threads"),
            "cache_hits": (grammars.num_cache_hits, "Requests whose grammar was there"),
            "masks": (grammars.num_masks, "Masks filled"),
            "mask_seconds": (grammars.mask_seconds, "Seconds of steps spent on masks"),
            "errors": (grammars.num_errors, "Choices ended by their grammar's failure"),
        }
        yield from self._named_counters("grammar_", counts)

    def _drafts(self, drafts: DraftStats) -> Iterable[Metric]:
        counts = {
            "num_drafts": (drafts.num_drafts, "Steps of a choice that verified drafts"),
            "num_draft_tokens": (drafts.num_draft_tokens, "Drafts verified"),
            "num_accepted_tokens": (drafts.num_accepted, "Drafts kept"),
        }
        yield from self._named_counters("spec_decode_", counts)
        by_place = CounterMetricFamily(
            f"{self._prefix}spec_decode_num_accepted_tokens_per_pos",
            "Drafts kept by their place in the step",
            labels=[*self._names, "position"],
        )
        for place, value in enumerate(drafts.accepted_at):
            by_place.add_metric([*self._values, str(place)], value)
        yield by_place
