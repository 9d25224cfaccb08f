"""Folders that hold no model to be served are named for what they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError
from server.command.configure import demo_model, engine_config
from server.command.models import check_models
from server.command.settings import load_settings

LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 512}


def refusal(folder: Path, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_models(engine_config(load_settings({"model": str(folder), **settings})), None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "is empty;"),
        (("model-q4.gguf", "README.md"), "holds GGUF files"),
        (("adapter_config.json", "adapter_model.safetensors"), "holds an adapter"),
        (("modules.json",), "holds a pipeline of several models"),
        (("README.md",), "has no config.json"),
    ],
)
def test_without_a_config(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert f"MODEL {tmp_path} {words}" in refusal(tmp_path)
    assert "config.json, a tokenizer and *.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["{broken", "[]"])
def test_with_a_broken_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "config.json cannot be read as an object of JSON" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("config", "files", "words"),
    [
        ({"model_type": "bert"}, ["a.safetensors"], "is an encoder, .* \\(model_type 'bert'\\)"),
        ({"model_type": "t5", "is_encoder_decoder": True}, [], "is an encoder with a decoder"),
        (LLAMA, ["pytorch_model.bin"], "has pickled weights"),
        (LLAMA, ["tokenizer.json"], "has no weights"),
    ],
)
def test_with_a_config(
    tmp_path: Path, config: dict[str, Any], files: list[str], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in files:
        (tmp_path / name).touch()
    assert re.search(words, refusal(tmp_path))


@pytest.mark.parametrize("nested", [False, True])
def test_a_context_over_the_model_s_positions(tmp_path: Path, nested: bool) -> None:
    config = {"model_type": "x", "text_config": LLAMA} if nested else LLAMA
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    words = refusal(tmp_path, max_model_len=513)
    assert words == "--max-model-len 513 is over the 512 positions of the model"
    check_models(engine_config(load_settings({"model": str(tmp_path), "max_model_len": 512})), None)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "tokenizer.json"])
def test_pointers_of_git_lfs(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert f"{name} is only a pointer of Git LFS; `git lfs pull`" in refusal(tmp_path)


def test_what_may_be_served(tmp_path: Path) -> None:
    check_models(engine_config(load_settings({"model": str(demo_model())})), None)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    dummy = load_settings({"model": str(tmp_path), "load_format": "dummy"})
    check_models(engine_config(dummy), None)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    for name, words in (("m.gguf", "a GGUF file, which llama.cpp reads"), ("m.txt", "a file")):
        (tmp_path / name).touch()
        assert f"{name} is {words};" in refusal(tmp_path / name)
