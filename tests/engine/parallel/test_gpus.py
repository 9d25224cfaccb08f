"""Engines of two rank processes on GPUs do what an engine of one does, on the demo model.

Where there is one GPU the ranks share it: then their kernels take turns, some milliseconds each,
so that little but the answers can be seen. In float32, as in `test_tensor_parallel`, whose odds
hold here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from demo import EAGLE_FOLDER
from engine.config import CacheConfig, EngineConfig
from engine.engine import Engine
from engine.parallel.processes import RankProcesses
from engine.speculative_config import SpeculativeConfig
from engine.startup import ranks
from engine.startup.build import build_engine
from tests.engine.parallel.rank_engines import ATOL, CONFIG, Results, assert_alike, mixed, read
from tests.engine.traffic import FRONTEND

pytestmark = pytest.mark.gpu

ON_GPU = structs.replace(
    CONFIG,
    model=structs.replace(CONFIG.model, device="cuda", dtype="float32"),
    cache=CacheConfig(num_blocks=400, memory_utilization=0.4),
    cuda_graphs=True,
    structured=None,
)


@contextmanager
def engine_on_gpus(config: EngineConfig) -> Iterator[tuple[Engine, list[str]]]:
    """An engine, and why one of its other ranks was lost, if one was."""
    started: list[RankProcesses] = []
    lost: list[str] = []

    def start(*args: Any, **options: Any) -> RankProcesses:
        started.append(RankProcesses(*args, **options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "RankProcesses", start)
        if torch.cuda.device_count() < config.tensor_parallel_size:
            patch.setattr(ranks, "visible_gpus", lambda size: ("0",) * size)
        try:
            yield build_engine(config, lost.append), lost
        finally:
            for each in started:
                each.close()


def answers(config: EngineConfig, count: int) -> Results:
    with engine_on_gpus(config) as (engine, lost):
        for one in mixed(count):
            engine.submit(FRONTEND, one)
        results = read(engine, limit_s=240.0)
        assert not lost
        return results


@cache
def of_one_rank() -> Results:
    return answers(ON_GPU, 64)


@pytest.mark.parametrize("cuda_graphs", [True, False], ids=["graphs", "eager"])
def test_mixed_requests_get_what_one_gpu_gives_them(cuda_graphs: bool) -> None:
    config = structs.replace(ON_GPU, tensor_parallel_size=2, cuda_graphs=cuda_graphs)
    alone, together = of_one_rank(), answers(config, 64)
    assert_alike(together, alone)
    for handle, arrays in together.prompts.items():
        np.testing.assert_allclose(arrays.chosen, alone.prompts[handle].chosen, atol=ATOL)


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_drafts_are_verified_by_all_ranks(method: Any) -> None:
    """With coupled acceptance a seeded request gives what it gives without drafts."""
    speculation = SpeculativeConfig(
        method=method,
        model=None if method == "ngram" else str(EAGLE_FOLDER),
        num_speculative_tokens=3,
        rejection_sample_method="coupled",
    )
    config = structs.replace(ON_GPU, tensor_parallel_size=2, speculation=speculation)
    together = answers(config, 24)
    assert all(of_one_rank().tokens[key] == tokens for key, tokens in together.tokens.items())
