"""The exposition: vLLM's names, the engine's numbers, counts that match what clients saw."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import FakeEngine, says
from tests.server.conftest import Site, in_process

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
        "tailrace_request_queue_time_seconds_bucket",
        "tailrace_request_prefill_time_seconds_bucket",
        "tailrace_request_decode_time_seconds_bucket",
        "tailrace_request_inference_time_seconds_bucket",
        "tailrace_iteration_tokens_total_bucket",
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
    assert seen["tailrace_time_to_first_token_seconds_count", ""] == 1
    assert seen["tailrace_request_params_n_sum", ""] == 4


async def test_the_engine_s_numbers(site: Site) -> None:
    await site.complete(prompt="a", max_tokens=4)
    assert site.metric("tailrace_engine_steps_total") == 4
    assert site.metric("tailrace_sampler_rows_total", path="native") == 4
    assert site.metric("tailrace_num_requests_running") == 0
    assert site.metric("tailrace_engine_up") == 1
    assert site.metric("tailrace_iteration_tokens_total_count") == 4
    assert site.metric("tailrace_iteration_tokens_total_sum") == 4
    assert site.metric("tailrace_iteration_tokens_total_bucket", le="1.0") == 4
