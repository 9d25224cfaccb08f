"""On PYTHONPATH this hides FlashInfer, whose modules take minutes to build, from each process."""

from __future__ import annotations

import importlib.machinery
from typing import Any

_find = importlib.machinery.PathFinder.find_spec


def _find_others(_: Any, name: str, *where: Any) -> importlib.machinery.ModuleSpec | None:
    return None if name == "flashinfer" else _find(name, *where)


# A method still, as pytest's own finder takes it.
importlib.machinery.PathFinder.find_spec = classmethod(_find_others)  # type: ignore[method-assign, assignment]
