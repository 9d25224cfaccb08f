"""Imports that take seconds, made shorter where nothing is lost."""

from __future__ import annotations

import contextlib
import sys
import types

ACTIVATIONS = "transformers.activations"


def import_config_checks() -> None:
    """Import transformers' checks of configs without its whole inference stack.

    They want the names of activations, whose module imports torch's compiler and its distributed
    packages: a third of all that an engine imports. Where there are no names, transformers checks
    none; who needs the module later imports it then. Call it before configs or tokenizers are read.
    """
    if ACTIVATIONS in sys.modules:
        return
    nameless = types.ModuleType(ACTIVATIONS)
    vars(nameless)["ACT2FN"] = {}
    sys.modules[ACTIVATIONS] = nameless
    try:
        with contextlib.suppress(ImportError):  # versions that have no such checks
            import transformers.utils.type_validators  # noqa: F401
    finally:
        del sys.modules[ACTIVATIONS]
