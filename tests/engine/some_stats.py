"""Statistics of an engine, for tests of messages."""

from __future__ import annotations

from engine.planning.timings import Timings
from engine.stats import EngineStats

STATS = EngineStats(
    num_running=1,
    num_waiting=2,
    kv_blocks_used=3,
    kv_blocks_total=4,
    num_steps=5,
    num_preemptions=6,
    prefix_cache_queries=7,
    prefix_cache_hits=8,
    prompt_tokens_computed=9,
    nan_rows=10,
    timings=Timings().stats(),
    sampler_rows={"native": 3},
)
