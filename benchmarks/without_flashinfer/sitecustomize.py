"""On PYTHONPATH this hides FlashInfer, whose modules take minutes to build, from each process."""

from __future__ import annotations

import importlib.machinery
from typing import Any

_find = importlib.machinery.PathFinder.find_spec


def _find_others(name: str, *where: Any) -> importlib.machinery.ModuleSpec | None:
    return None if name == "flashinfer" else _find(name, *where)


importlib.machinery.PathFinder.find_spec = _find_others  # type: ignore[method-assign, assignment]
