"""The exposition: vLLM's names, the engine's numbers, counts that match what clients saw."""

from __future__ import annotations

import asyncio
import math
import time

import msgspec
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from engine.stats import AdapterStats
from server.engine_metrics import NO_STATS
from server.metrics import COUNTED_TOGETHER, GapHistogram
from tests.fakes import FakeEngine, says
from tests.server.conftest import Site, eventually, in_process

LABELS = {"model_name": "fake", "engine": "0"}


async def samples(site: Site) -> dict[tuple[str, str], float]:
    """Every sample by name and finished reason, as a scraper reads it."""
    reply = await site.client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


async def test_names_are_there_before_the_first_request(site: Site) -> None:
    names = {name for name, _ in await samples(site)}
    assert names >= {
        "tailrace_num_requests_running",
        "tailrace_num_requests_waiting",
        "tailrace_kv_cache_usage_perc",
        "tailrace_prompt_tokens_total",
        "tailrace_generation_tokens_total",
        "tailrace_request_success_total",
        "tailrace_num_preemptions_total",
        "tailrace_prefix_cache_queries_total",
        "tailrace_prefix_cache_hits_total",
        "tailrace_time_to_first_token_seconds_bucket",
        "tailrace_inter_token_latency_seconds_bucket",
        "tailrace_e2e_request_latency_seconds_bucket",
        "tailrace_request_prompt_tokens_bucket",
        "tailrace_request_generation_tokens_bucket",
        "tailrace_request_params_n_bucket",
        "tailrace_request_params_max_tokens_bucket",
        "tailrace_nan_rows_total",
        "tailrace_no_token_allowed_total",
        "tailrace_grammar_compiles_total",
        "tailrace_grammar_compile_seconds_total",
        "tailrace_grammar_cache_hits_total",
        "tailrace_grammar_masks_total",
        "tailrace_grammar_mask_seconds_total",
        "tailrace_grammar_errors_total",
        "tailrace_request_queue_time_seconds_bucket",
        "tailrace_request_prefill_time_seconds_bucket",
        "tailrace_request_decode_time_seconds_bucket",
        "tailrace_request_inference_time_seconds_bucket",
        "tailrace_iteration_tokens_total_bucket",
        "tailrace_num_requests_waiting_by_reason",
        "tailrace_admission_rejections_total",
        "tailrace_request_time_per_output_token_seconds_bucket",
        "tailrace_request_max_num_generation_tokens_bucket",
        "tailrace_request_num_preemptions_bucket",
        "tailrace_state_snapshots_capacity",
        "tailrace_state_snapshots_kept",
        "tailrace_state_snapshots_capacity_bytes",
        "tailrace_state_snapshots_kept_bytes",
        "tailrace_state_snapshots_made_total",
        "tailrace_state_snapshots_hits_total",
        "tailrace_state_snapshots_evicted_total",
    }


async def test_counts_match_what_the_client_saw() -> None:
    async with in_process(FakeEngine(says("hi"))) as site:
        stopped = await site.complete(prompt=["abc", "de"], n=2)
        cut = await site.complete(prompt="abc", max_tokens=1)
        chunks = await site.stream(prompt="abc")
        seen = await samples(site)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert seen["tailrace_request_success_total", "stop"] == 5
    assert seen["tailrace_request_success_total", "length"] == 1
    assert seen["tailrace_request_success_total", "abort"] == 0
    usage = [stopped["usage"], cut["usage"], {"prompt_tokens": 3, "completion_tokens": 3}]
    assert seen["tailrace_prompt_tokens_total", ""] == sum(u["prompt_tokens"] for u in usage)
    assert seen["tailrace_generation_tokens_total", ""] == sum(
        u["completion_tokens"] for u in usage
    )
    assert seen["tailrace_e2e_request_latency_seconds_count", ""] == 3
    assert (
        seen["tailrace_time_to_first_token_seconds_count", ""] == 4
    )  # of prompts, streamed or not
    assert seen["tailrace_request_params_n_sum", ""] == 4
    assert seen["tailrace_request_max_num_generation_tokens_sum", ""] == 3 + 1 + 3


async def test_buckets_of_n_end_at_a_thousand(site: Site) -> None:
    text = (await site.client.get("/metrics")).text
    bounds = {
        float(sample.labels["le"])
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tailrace_request_params_n_bucket"
    }
    assert bounds == {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, math.inf}


async def test_the_engine_s_numbers(site: Site) -> None:
    await site.complete(prompt="a", max_tokens=4)
    assert site.metric("tailrace_engine_steps_total") == 4
    assert site.metric("tailrace_sampler_rows_total", path="native") == 4
    assert site.metric("tailrace_num_requests_running") == 0
    assert site.metric("tailrace_engine_up") == 1
    assert site.metric("tailrace_iteration_tokens_total_count") == 4
    assert site.metric("tailrace_iteration_tokens_total_sum") == 4
    assert site.metric("tailrace_iteration_tokens_total_bucket", le="1.0") == 4


async def test_the_time_to_the_first_token_is_not_that_to_the_last() -> None:
    async with in_process(FakeEngine(step_s=0.01)) as site:
        await site.complete(prompt="a", max_tokens=40)
        first = site.metric("tailrace_time_to_first_token_seconds_sum")
        assert 0 < first < site.metric("tailrace_e2e_request_latency_seconds_sum") - 0.2


async def test_a_dead_engine_has_no_gauges() -> None:
    engine = FakeEngine(step_s=0.01)
    async with in_process(engine) as site:
        body = {"prompt": "a", "max_tokens": 200}
        task = asyncio.create_task(site.client.post("/v1/completions", json=body))
        await eventually(lambda: site.metric("tailrace_num_requests_running") == 1)
        engine.die("killed by a test")
        names = {name for name, _ in await samples(site)}
        await task
    assert "tailrace_num_requests_running" not in names
    assert "tailrace_kv_cache_usage_perc" not in names
    assert {"tailrace_engine_up", "tailrace_engine_steps_total"} <= names


async def test_what_waits_is_told_by_reason() -> None:
    engine = FakeEngine()
    async with in_process(engine) as site:
        engine.stats = msgspec.structs.replace(NO_STATS, num_waiting=5, num_deferred=2)
        name = "tailrace_num_requests_waiting_by_reason"
        assert site.metric(name, reason="capacity") == 3
        assert site.metric(name, reason="deferred") == 2


async def test_the_prefix_can_be_vllm_s() -> None:
    async with in_process(metrics_prefix="vllm:") as site:
        await site.complete(prompt="a", max_tokens=2)
        seen = await samples(site)
    assert seen["vllm:generation_tokens_total", ""] == 2
    assert seen["vllm:num_requests_running", ""] == 0
    assert seen["vllm:iteration_tokens_total_count", ""] == 2
    assert not [name for name, _ in seen if name.startswith("tailrace")]


async def test_the_process_and_the_cache_are_told_of(site: Site) -> None:
    seen = await samples(site)
    assert seen["process_resident_memory_bytes", ""] > 1 << 20
    assert seen["process_open_fds", ""] > 2
    assert ("python_gc_objects_collected_total", "") in seen
    labels = {"block_size": "16", "num_gpu_blocks": "100", "cache_dtype": "float32"}
    labels |= {"kv_cache_size_tokens": "1600", "kv_cache_max_concurrency": "6.25"}
    assert site.metric("tailrace_cache_config_info", **labels) == 1


async def test_adapters_are_named_as_vllm_names_them() -> None:
    async with in_process(enable_lora=True) as site:
        adapters = AdapterStats(
            running=("a", "b"), waiting=("c",), num_slots=8, num_held=3, num_slot_loads=5
        )
        site.engine.stats = msgspec.structs.replace(NO_STATS, adapters=adapters)
        reply = await site.client.get("/metrics")
        found = {
            sample.name: sample
            for family in text_string_to_metric_families(reply.text)
            for sample in family.samples
        }
        info = found["tailrace_lora_requests_info"]
        assert info.labels == LABELS | {
            "max_lora": "8",
            "running_lora_adapters": "a,b",
            "waiting_lora_adapters": "c",
        }
        assert abs(info.value - time.time()) < 60
        assert found["tailrace_lora_adapters_held"].value == 3
        assert found["tailrace_lora_slot_loads_total"].value == 5
        assert found["tailrace_lora_failed_readings_total"].value == 0


def test_gaps_are_counted_together_as_each_would_be() -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    plain, kept = (
        Histogram("gaps", "Gaps", buckets=(0.5, 1.0, 4.0), registry=each) for each in registries
    )
    gaps = GapHistogram(kept)
    gaps.count()
    values = [0.25, 0.5, 0.75, 1.0, 5.0, 0.0] * COUNTED_TOGETHER
    for value in values[:-1]:
        plain.observe(value)
        gaps.observe(value)
    assert registries[1].get_sample_value("gaps_count") == len(values) - COUNTED_TOGETHER
    gaps.count()
    for bound in ("0.5", "1.0", "4.0", "+Inf"):
        found = [each.get_sample_value("gaps_bucket", {"le": bound}) for each in registries]
        assert found[0] == found[1]
    assert registries[0].get_sample_value("gaps_sum") == registries[1].get_sample_value("gaps_sum")
