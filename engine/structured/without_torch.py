"""Lets transformers read tokenizers in a process that never runs a model."""

from __future__ import annotations

import os
import sys

from engine.structured.without_models import leave_models_out


def prepare_for_tokenizers(*, trust_remote_code: bool) -> None:
    """Let transformers be imported in a fraction of its time, in a process as of `leave_torch_out`.

    Args:
        trust_remote_code: code of a checkpoint may run, which may want torch.
    """
    leave_models_out()
    if not trust_remote_code:
        leave_torch_out()


def leave_torch_out() -> None:
    """Let transformers read tokenizers as where torch is not installed.

    It imports torch to check a config, 2 s and 300 MB of each such process for nothing. Only for
    a process that never runs a model, before anything of transformers is imported.
    """
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as importlib marks what is missing
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # that it is missing
