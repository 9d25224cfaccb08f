"""Settings that cannot be served are refused by name, limit and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demo import MODEL_FOLDER
from engine.config import (
    AdaptersConfig,
    CacheConfig,
    ConfigError,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.startup.build import build_engine

MODEL = ModelConfig(model=str(MODEL_FOLDER), device="cpu")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scheduler": SchedulerConfig(max_rows=0)}, ["--max-num-seqs", "1", "0"]),
        (
            {"scheduler": SchedulerConfig(max_rows=9, max_step_tokens=8)},
            ["--max-num-batched-tokens", "--max-num-seqs", "8", "9"],
        ),
        ({"cache": CacheConfig(num_blocks=1)}, ["--num-gpu-blocks-override", "2", "1"]),
        ({"cache": CacheConfig(block_size=0)}, ["--block-size", "1", "0"]),
        ({"cache": CacheConfig(memory_utilization=1.5)}, ["--gpu-memory-utilization", "1.5"]),
    ],
)
def test_bad_settings_are_named(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=MODEL, **fields)
    assert all(word in str(caught.value) for word in words)


def test_adapters_of_one_step_must_fit_on_the_host() -> None:
    with pytest.raises(ConfigError, match=r"--max-cpu-loras \(2\) .* --max-loras \(3\)"):
        EngineConfig(model=MODEL, adapters=AdaptersConfig(max_loras=3, max_cpu_loras=2))
    EngineConfig(model=MODEL, adapters=AdaptersConfig(max_loras=3, max_cpu_loras=3))


def test_a_gap_needs_chunks() -> None:
    with pytest.raises(ConfigError, match=r"--max-gap-ms 15 .* --no-enable-chunked-prefill"):
        EngineConfig(model=MODEL, scheduler=SchedulerConfig(max_gap_s=0.015, chunked_prefill=False))


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
    model: dict[str, Any], fields: dict[str, Any], words: list[str]
) -> None:
    given: dict[str, Any] = {"model": str(MODEL_FOLDER), "device": "cpu"} | model
    config = ModelConfig(**given)
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


@pytest.mark.parametrize("model_impl", ["fused", "transformers"])
def test_a_context_that_is_too_long_is_refused_before_weights_are_read(
    tmp_path: Path, model_impl: Any
) -> None:
    (tmp_path / "config.json").write_text((MODEL_FOLDER / "config.json").read_text())
    config = ModelConfig(
        model=str(tmp_path), device="cpu", max_model_len=4096, model_impl=model_impl
    )
    with pytest.raises(ConfigError, match="4096 is over the 2048 positions"):
        build_engine(EngineConfig(model=config))


def test_stop_ids_outside_the_vocabulary_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients would get a 400 for each request otherwise, for an id they did not name."""
    content = json.loads((MODEL_FOLDER / "config.json").read_text())
    known = [0, 7]
    content["eos_token_id"] = [*known, content["vocab_size"], -1]
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = ModelConfig(model=str(tmp_path), device="cpu", load_format="dummy")
    engine = build_engine(EngineConfig(model=config, cache=CacheConfig(num_blocks=9)))
    assert set(engine.info.eos_token_ids) == set(known)
    assert f"[{content['vocab_size']}, -1] outside its vocabulary" in caplog.text


def test_default_budgets_of_a_step() -> None:
    """A whole prompt fits where prompts are not split, and every row gets a token."""
    assert SchedulerConfig().step_tokens == 512
    assert SchedulerConfig(max_rows=600).step_tokens == 600
    assert SchedulerConfig(chunked_prefill=False).step_tokens == 2048
    gpu = SchedulerConfig().on_gpu()
    assert (gpu.step_tokens, gpu.burst_rows) == (8192, 256)
    assert SchedulerConfig(max_step_tokens=300).on_gpu().step_tokens == 300
