from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import AdaptersConfig, ConfigError
from server.command.configure import engine_config, server_config
from server.command.settings import load_settings


def refusal(**flags: Any) -> str:
    try:
        settings = load_settings(flags)
        server_config(settings, engine_config(settings))
    except ConfigError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def test_flags_make_the_configuration(tmp_path: Path) -> None:
    words = ["a=/x/a", '{"name": "b", "path": "/x/b", "base_model_name": "m"}']
    flags = {"enable_lora": True, "lora_modules": words, "max_loras": 3, "max_lora_rank": 64}
    settings = load_settings({**flags, "max_cpu_loras": 9, "lora_root": "/x"})
    config = engine_config(settings)
    assert config.adapters == AdaptersConfig(
        max_loras=3, max_rank=64, max_cpu_loras=9, modules=(("a", "/x/a"), ("b", "/x/b"))
    )
    http = server_config(settings, config)
    assert (http.enable_lora, http.lora_root) == (True, "/x")
    assert engine_config(load_settings({})).adapters is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"enable_lora": False, "max_loras": 2}, "--max-loras needs --enable-lora"),
        ({"lora_modules": ["a"]}, "must be NAME=FOLDER, got 'a'"),
        ({"lora_modules": ["=x"]}, "must be NAME=FOLDER"),
        ({"lora_modules": ['{"name": "a"}']}, "not an object with name and path"),
        ({"lora_modules": ["a=x", "a=y"]}, "names 'a' twice"),
        ({"lora_modules": ["tailrace-demo=x"]}, "a name of the model itself"),
        ({"lora_modules": ["a=/y"], "lora_root": "/x"}, "--lora-root (/x)"),
        ({"max_lora_rank": 257}, "--max-lora-rank"),
        ({"max_loras": 4, "max_cpu_loras": 3}, "--max-cpu-loras (3) must be at least --max-loras"),
        ({"allow_any_model_name": True}, "--allow-any-model-name"),
    ],
)
def test_refusals(flags: dict[str, Any], words: str) -> None:
    assert words in refusal(**({"enable_lora": True} | flags))
