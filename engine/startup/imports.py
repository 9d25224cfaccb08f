"""Imports that take seconds, made shorter where nothing is lost."""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.structured.without_models import leave_models_out

ACTIVATIONS = "transformers.activations"
MISSED = ("torchvision", "transformers.models.auto.modeling_auto")
"""Modules that transformers does without where they cannot be imported."""


def import_config_class(model: str) -> None:
    """Import the config class of a model folder without transformers' inference stack.

    Checks of configs want the names of activations and, where it is installed, torchvision; their
    documentation, made at import, wants the names of models. All three import torch's compiler and
    what generates text: half of all that an engine imports. Where there are no names of
    activations, transformers checks none. Whoever needs the modules later imports them then, but
    transformers takes torchvision for missing: no image is served. Call it before anything else
    reads configs or tokenizers, also those of other models.

    Args:
        model: as in `ModelConfig`; of a hub id only what all models share is imported.
    """
    leave_models_out()
    with _without_inference(), contextlib.suppress(Exception):  # whoever reads the config says why
        import transformers.utils.type_validators  # noqa: F401
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        path = Path(model).expanduser() / "config.json"
        CONFIG_MAPPING[json.loads(path.read_text(encoding="utf-8"))["model_type"]]


@contextlib.contextmanager
def modules_by_name() -> Iterator[None]:
    """Let `inspect` find a module by the name that an object has of it and by nothing else, within.

    Torch asks for the line that defines each of its operators in Python. A frame has no such name,
    so that each time the path of every module's file would be resolved: 15,000 calls of the system.
    """
    by_path = inspect.getmodule

    def by_name(found: Any, _filename: str | None = None) -> types.ModuleType | None:
        return sys.modules.get(getattr(found, "__module__", ""))

    inspect.getmodule = by_name  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getmodule = by_path


@contextlib.contextmanager
def _without_inference() -> Iterator[None]:
    if not {ACTIVATIONS, *MISSED}.isdisjoint(sys.modules):
        yield
        return
    nameless = types.ModuleType(ACTIVATIONS)
    vars(nameless)["ACT2FN"] = {}
    sys.modules[ACTIVATIONS] = nameless
    for name in MISSED:
        sys.modules[name] = None  # type: ignore[assignment]  # as importlib marks what is missing
    try:
        yield
    finally:
        for name in (ACTIVATIONS, *MISSED):
            del sys.modules[name]
