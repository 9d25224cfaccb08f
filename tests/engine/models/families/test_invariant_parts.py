"""With `--batch-invariant` every part of a model that has two ways to compute takes the one for it.

Whether a forgotten one changes bits depends on the library and the sizes; that it was forgotten
does not. `tests/engine/startup/verify/test_invariance.py` compares the bits themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.models.families.hybrid_models import FAMILIES, config_of, write_hybrid
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS

CHOICES = ("invariant", "_invariant", "by_token")
"""Attributes by which a part says that it is invariant; false or None where it is not."""


def parts(root: Any, path: str = "model") -> Iterator[tuple[str, Any]]:
    """The objects of the engine's own classes within a model, each with where it is."""
    seen: set[int] = set()
    todo = [(path, root)]
    while todo:
        path, item = todo.pop()
        if id(item) in seen or isinstance(item, torch.Tensor | str | bytes | type):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            todo += [(f"{path}[{key!r}]", value) for key, value in item.items()]
        elif type(item) in (list, tuple):
            todo += [(f"{path}[{i}]", value) for i, value in enumerate(item)]
        elif type(item).__module__.startswith("engine."):
            yield path, item
            own = getattr(item, "_fields", ()) or getattr(item, "__dict__", ())
            todo += [(f"{path}.{name}", getattr(item, name)) for name in own]


def check(folder: Path) -> int:
    """How many parts have a choice; none may have chosen otherwise."""
    model = load(folder, batch_invariant=True, max_model_len=128)
    chosen = {
        f"{path}.{name}": getattr(part, name)
        for path, part in parts(model)
        for name in CHOICES
        if hasattr(part, name)
    }
    assert [path for path, choice in chosen.items() if choice in (None, False)] == []
    return len(chosen)


@pytest.mark.parametrize("name", MODELS)
def test_families(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS[name], tmp_path)
    assert check(tmp_path) >= 5, "products are among them"


@pytest.mark.parametrize("family", FAMILIES)
def test_hybrids(family: str, tmp_path: Path) -> None:
    write_hybrid(config_of(family), tmp_path)
    assert check(tmp_path) >= 5
