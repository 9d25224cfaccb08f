"""`tailrace models`: the architectures on our own layers, and what runs a model of yours."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import resources
from typing import Any

from engine.errors import ConfigError, ModelError

Row = dict[str, Any]
COLUMNS = {
    "model_type": "model type",
    "layers": "layers",
    "quantized": "quantized, tested on a GPU",
    "drafts": "drafts of its own",
    "ranks": "ranks tested",
    "gpu": "GPU tests",
}
"""Fields of a row, and their headings."""


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.usage = "tailrace models [MODEL] [--json]"
    words = "A folder or hub id: say what runs it, and what of it is not on our own layers."
    parser.add_argument("model", nargs="?", default=None, metavar="MODEL", help=words)
    parser.add_argument("--json", action="store_true", help="Print the table as JSON.")


def run_models(given: dict[str, Any]) -> int:
    """Print the table, or what runs a model; 2 where that cannot be read."""
    if given["model"] is not None:
        sys.stdout.write(f"{given['model']}: {what_runs(given['model'])}\n")
        return 0
    rows = served_models()
    sys.stdout.write(json.dumps(rows, indent=1) + "\n" if given["json"] else text_table(rows))
    return 0


def served_models() -> list[Row]:
    """The rows that tests made, by model type."""
    file = resources.files("server.command") / "served_models.json"
    rows: list[Row] = json.loads(file.read_text())
    return rows


def cells(row: Row) -> list[str]:
    """A row's fields in words."""
    words = []
    for name in COLUMNS:
        value = row[name]
        if isinstance(value, bool):
            value = "yes" if value else "no"
        words.append(", ".join(value) if isinstance(value, list) else str(value))
    return words


def text_table(rows: list[Row]) -> str:
    """The table for a terminal; what is none of it runs on transformers' modules."""
    lines = [list(COLUMNS.values()), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return "\n".join((*padded, "Others run on transformers' modules.", ""))


def what_runs(model: str) -> str:
    """What runs a model, in words.

    Raises:
        ConfigError: its config cannot be read.
    """
    from engine.models.families.table import unfused_reason  # seconds to import
    from engine.models.model_config import read_config
    from engine.models.weights.folder import model_folder

    try:
        folder = model_folder(model, None, weights=False)
        config = read_config(folder, trust_remote_code=False, may_be_quantized=True)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    reason = unfused_reason(config)
    if reason is None:
        return f"{config.model_type} runs on our own layers"
    return f"{config.model_type} runs on transformers' modules, not on our own layers: {reason}"
