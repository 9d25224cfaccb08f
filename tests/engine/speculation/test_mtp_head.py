"""The multi-token-prediction head of a checkpoint as a drafter, against transformers' modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from tests.engine.speculation.drafted_rows import DEVICES
from tests.engine.speculation.test_drafters import drafted_rows, serve
from tests.engine.speculation.tiny_mtp import write_with_mtp
from tests.engine.tiny_models import write_model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_mtp(device: torch.device, tmp_path: Path, temperature: float) -> None:
    """Greedy and drawn drafts, each after the first of the head's own output."""
    _, head = write_with_mtp(tmp_path, ["full_attention"] * 2)
    serve(drafted_rows(device, tmp_path, head, temperature=temperature, method="mtp"))


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    write_model("llama", tmp_path)
    with pytest.raises(ModelError, match=r"method 'mtp': .* multi-token-prediction"):
        drafted_rows(torch.device("cpu"), tmp_path, None, temperature=0.0, method="mtp")
