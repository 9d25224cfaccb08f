"""Imports that take seconds, made shorter where nothing is lost."""

from __future__ import annotations

import contextlib
import sys
import types

ACTIVATIONS, IMAGES = "transformers.activations", "torchvision"


def import_config_checks() -> None:
    """Import transformers' checks of configs without its whole inference stack.

    They want the names of activations and, where it is installed, torchvision. Both import torch's
    compiler, and the first its distributed packages: half of all that an engine imports. Where
    there are no names, transformers checks none. Whoever needs the modules later imports them then,
    but transformers takes torchvision for missing: no image is served. Call it before configs or
    tokenizers are read.
    """
    if not {ACTIVATIONS, IMAGES}.isdisjoint(sys.modules):
        return
    nameless = types.ModuleType(ACTIVATIONS)
    vars(nameless)["ACT2FN"] = {}
    sys.modules[ACTIVATIONS] = nameless
    sys.modules[IMAGES] = None  # type: ignore[assignment]  # as importlib marks what is missing
    try:
        with contextlib.suppress(ImportError):  # versions that have no such checks
            import transformers.utils.type_validators  # noqa: F401
    finally:
        del sys.modules[ACTIVATIONS], sys.modules[IMAGES]
