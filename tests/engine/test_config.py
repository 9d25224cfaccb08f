"""Settings that cannot be served are refused by name, limit and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo import MODEL_FOLDER
from engine.config import CacheConfig, ConfigError, EngineConfig, ModelConfig, SchedulerConfig
from engine.startup.build import build_engine

MODEL = ModelConfig(model=str(MODEL_FOLDER), device="cpu")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scheduler": SchedulerConfig(max_rows=0)}, ["max-num-seqs", "1", "0"]),
        (
            {"scheduler": SchedulerConfig(max_rows=9, max_step_tokens=8)},
            ["max-num-batched-tokens", "max-num-seqs", "8", "9"],
        ),
        ({"cache": CacheConfig(num_blocks=1)}, ["num-gpu-blocks-override", "2", "1"]),
        ({"cache": CacheConfig(block_size=0)}, ["block-size", "1", "0"]),
        ({"cache": CacheConfig(memory_utilization=1.5)}, ["gpu-memory-utilization", "1.5"]),
    ],
)
def test_bad_settings_are_named(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=MODEL, **fields)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        ({"max_model_len": 4096}, {}, ["max-model-len", "4096", "2048"]),
        ({"max_model_len": 0}, {}, ["max-model-len", "at least 1"]),
        ({"max_model_len": 512}, {"cache": CacheConfig(num_blocks=9)}, ["512", "128", "33"]),
        (
            {},
            {"scheduler": SchedulerConfig(chunked_prefill=False, max_step_tokens=1024)},
            ["chunked prefill", "2048", "1024"],
        ),
        ({"device": "cuda"}, {}, ["device", "cuda"]),
    ],
)
def test_what_does_not_fit_the_model_is_named_with_numbers(
    model: dict[str, object], fields: dict[str, object], words: list[str]
) -> None:
    config = ModelConfig(**({"model": str(MODEL_FOLDER), "device": "cpu"} | model))
    with pytest.raises(ConfigError) as caught:
        build_engine(EngineConfig(model=config, **fields))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_an_unasked_context_shrinks_to_the_cache() -> None:
    engine = build_engine(EngineConfig(model=MODEL, cache=CacheConfig(num_blocks=9)))
    assert engine.info.max_model_len == 128


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODEL_FOLDER / "config.json").read_text())
    with pytest.raises(ConfigError, match="safetensors"):
        build_engine(EngineConfig(model=ModelConfig(model=str(tmp_path), device="cpu")))
