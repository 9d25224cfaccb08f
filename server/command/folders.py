"""Names model folders for what they are, before anything slow begins.

What is found here would else be said a quarter of a minute later, after torch and transformers have
been imported, and in their words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config import ConfigError, ModelConfig
from engine.models.weights.folder import POSITION_LIMITS
from engine.models.weights.overrides import overridden

_ENCODERS = frozenset(
    (
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie"),
        *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta", "xlm-roberta-xl"),
    )
)
"""Model types of transformers whose models read a whole text and give no next token."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_WHOLE = "name a folder with config.json, a tokenizer and *.safetensors"


def check_file(flag: str, path: Path) -> None:
    """Raise `ConfigError` for a file, which is no model."""
    kind = "a GGUF file, which llama.cpp reads" if path.suffix == ".gguf" else "a file"
    raise ConfigError(f"{flag} {path} is {kind}; {_WHOLE}")


def check_folder(folder: Path, config: ModelConfig) -> None:
    """Raise `ConfigError` for a folder that holds no model which can be served."""
    names = sorted(each.name for each in folder.iterdir())
    if "config.json" not in names:
        raise ConfigError(f"MODEL {folder} {_without_config(names)}; {_WHOLE}")
    for name in names:
        if name.endswith((".safetensors", ".json")) and _is_pointer(folder / name):
            raise ConfigError(
                f"MODEL {folder}: {name} is only a pointer of Git LFS; `git lfs pull` "
                "there fetches it"
            )
    about = _read(folder / "config.json")
    if about is None:
        raise ConfigError(f"MODEL {folder}: its config.json cannot be read as an object of JSON")
    _check_kind(folder, about)
    if config.load_format != "dummy" and not any(name.endswith(".safetensors") for name in names):
        pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
        has = "has pickled weights, which are not loaded" if pickled else "has no weights"
        raise ConfigError(f"MODEL {folder} {has}; {_WHOLE}")
    _check_context(overridden(about, config.hf_overrides), config.max_model_len)


def quantization_of_folder(folder: Path) -> str | None:
    """How a folder's checkpoint was quantized, "no quantization", or None where it is not known."""
    about = _read(folder / "config.json")
    if about is None:
        return None
    config = about.get("quantization_config")
    return str(config.get("quant_method")) if isinstance(config, dict) else "no quantization"


def _is_pointer(path: Path) -> bool:
    """Whether a file is what a clone without Git LFS has in place of a large one."""
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def _without_config(names: list[str]) -> str:
    if not names:
        return "is empty"
    if any(name.endswith(".gguf") for name in names):
        return "holds GGUF files, which llama.cpp reads"
    if "adapter_config.json" in names:
        return "holds an adapter, which needs the model that it was made for"
    if "modules.json" in names or "model_index.json" in names:
        return "holds a pipeline of several models"
    return "has no config.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _check_kind(folder: Path, about: dict[str, Any]) -> None:
    kind = about.get("model_type")
    words = None
    if kind in _ENCODERS and not about.get("is_decoder"):
        words = "an encoder, which reads a text and gives no next token"
    elif about.get("is_encoder_decoder"):
        words = "an encoder with a decoder"
    if words is not None:
        raise ConfigError(
            f"MODEL {folder} is {words} (model_type {kind!r}): only decoders, causal language "
            "models, are served"
        )


def _check_context(about: dict[str, Any], asked: int | None) -> None:
    """The engine's own check, where config.json itself names the positions."""
    text = about["text_config"] if isinstance(about.get("text_config"), dict) else about
    named = [value for name in POSITION_LIMITS if isinstance(value := text.get(name), int)]
    if asked is not None and named and asked > named[0]:
        raise ConfigError(f"--max-model-len {asked} is over the {named[0]} positions of the model")
