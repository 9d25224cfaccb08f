"""The files of `deploy/`, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.house import ROOT

DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"


def documents(path: Path) -> list[Any]:
    """The documents of a file of YAML."""
    return list(yaml.safe_load_all(path.read_text()))


def document(path: Path) -> Any:
    """The only one."""
    (found,) = documents(path)
    return found
