"""A model folder's config as transformers reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.errors import ModelError, first_line
from engine.models.formats.config import quantization as quantization_of
from engine.models.weights.folder import read_json
from engine.models.weights.overrides import overridden


def read_config(
    folder: Path,
    trust_remote_code: bool,
    *,
    may_be_quantized: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> Any:
    """Read the folder's transformers config.

    Args:
        overrides: values in place of the folder's, as `overridden` has it.

    Raises:
        ModelError: config.json is missing, unreadable, or of an unknown architecture, or of a
            checkpoint that is quantised and may not be.
    """
    from transformers import AutoConfig  # seconds to import

    path = folder / "config.json"
    content = read_json(path)
    quantization = quantization_of(content, path)
    if not may_be_quantized and quantization is not None:
        raise ModelError(f"{folder}: quantized weights are only read of a model, not of its head")
    if overrides and trust_remote_code and "auto_map" in content:
        raise ModelError(f"{path}: --hf-overrides is not read by code that comes with a model")
    try:
        if not overrides:
            return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        with TemporaryDirectory() as changed:  # as a folder, which is read as all others are
            text = json.dumps(overridden(content, overrides))
            (Path(changed) / "config.json").write_text(text)
            return AutoConfig.from_pretrained(changed)
    except Exception as error:  # transformers validates in many ways
        if overrides:
            raise ModelError(f"--hf-overrides: {first_line(error)}") from error
        raise ModelError(f"{path}: {first_line(error)}; correct it") from error
