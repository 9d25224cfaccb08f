"""Finds a model's files: in a folder, or of a hub id in the local cache. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError, first_line

SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
POSITION_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names by which a config says how many positions its model was made for, the first first."""
INDEX = "model.safetensors.index.json"


def model_folder(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """The local folder of a model; fetches the model from the hub if `model` is an id.

    Raises:
        ModelError: no such folder, and no such model on the hub or the hub not reachable.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise ModelError(f"model {model!r} is not a folder")
    from huggingface_hub import snapshot_download  # slow to import, seldom needed

    patterns = SMALL_FILES + (["*.safetensors"] if weights else [])
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except Exception as error:  # one of many network, cache and hub exceptions
        raise ModelError(
            f"model {model!r} is neither a folder nor a hub id that can be fetched: "
            f"{first_line(error)}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return content


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The end-of-sequence ids of config.json and generation_config.json, without repeats."""
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        if not (folder / name).exists():
            continue
        content = read_json(folder / name)
        value = content.get("eos_token_id")
        if value is None and isinstance(content.get("text_config"), dict):
            value = content["text_config"].get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(found))
