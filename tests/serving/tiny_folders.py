"""Folders of tiny models that a server can serve: with the demo's vocabulary and tokenizer."""

from __future__ import annotations

from pathlib import Path
from shutil import copy
from typing import Any

from demo import MODEL_FOLDER
from tests.engine.tiny_models import write_model

SIZES: dict[str, Any] = {"vocab_size": 8192, "max_position_embeddings": 2048}


def write_with_tokenizer(kind: str, folder: Path) -> None:
    """Write a tiny model of an architecture, with a tokenizer."""
    write_model(kind, folder, **SIZES)
    add_tokenizer(folder)


def add_tokenizer(folder: Path) -> None:
    """Add the demo's tokenizer to the folder of a model of `SIZES`."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(MODEL_FOLDER / name, folder / name)
