"""Statements of error that ranks make, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.config import CacheConfig, CacheDtype, EngineConfig, ModelConfig
from engine.contracts.info import ErrorStatement
from engine.models.kv_scales import stored_kv_scales
from engine.models.loader import load_model
from engine.startup.error_statement import ErrorMeasure
from engine.startup.kv_scales import kv_scales
from sampling.device.ranks import RankExchange
from tests.engine.models.serving import LENGTH

CPU = torch.device("cpu")


def stated(
    folder: Path, exchange: RankExchange, kv: CacheDtype = "auto", **model: Any
) -> ErrorStatement:
    """What a rank states of a model that it loads."""
    config = EngineConfig(
        model=ModelConfig(model=str(folder), max_model_len=LENGTH, device="cpu", **model),
        cache=CacheConfig(num_blocks=40, dtype=kv),
    )
    measure = ErrorMeasure(config, None, exchange)
    loaded = load_model(config.model, CPU, exchange, measure.reference)
    scales = None
    if kv == "fp8":
        stored = stored_kv_scales(config.model, loaded.attention_specs, CPU, exchange)
        scales = kv_scales(loaded, CPU, config.cache.block_size, LENGTH, stored)
    statement = measure.statement(loaded, CPU, scales)
    assert statement is not None
    return statement
