"""Weights in the memory of another process on the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.contracts.named_weights import NamedWeights
from engine.contracts.weights import BeginUpdate, FinishUpdate, ReceiveTensors
from engine.weights.commands import RankWeights
from sampling.device.ranks import LoneRank
from tests.engine.models.rewriting import stored_tensors, text_logits, write_other
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.weights.shared_tensors import shared

pytestmark = pytest.mark.gpu


def test_tensors_of_another_process(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path / "old")
    write_other(tmp_path / "old", tmp_path / "new")
    model = load(tmp_path / "old", on="cuda")
    room = RankWeights(model.named_weights(), NamedWeights(), model.device, LoneRank())
    with shared(tmp_path / "new", stored_tensors(tmp_path / "new")) as source:
        room.run(BeginUpdate(check=True))
        room.run(ReceiveTensors(source=source))
    room.run(FinishUpdate())  # the trainer has gone
    wanted = text_logits(load(tmp_path / "new", on="cuda"))
    assert torch.equal(text_logits(model), wanted)
