"""What an update keeps until it is written."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
import torch

from engine.contracts.weights import (
    BeginUpdate,
    FinishUpdate,
    FolderSource,
    ReceiveTensors,
    WeightUpdateError,
)
from tests.engine.models.rewriting import stored_tensors
from tests.engine.models.serving import load
from tests.engine.tiny_models import write_model
from tests.engine.weights.rooms import given, room_of


def num_tensors() -> int:
    return sum(type(each) is torch.Tensor for each in gc.get_objects())


@pytest.mark.parametrize("at", ["tensors", "finish"])
def test_what_a_refused_update_received_is_let_go_of_at_once(at: str, tmp_path: Path) -> None:
    """A trainer on the same GPU has no room for it; garbage is looked for much later."""
    write_model("qwen3", tmp_path)
    room, tensors = room_of(load(tmp_path)), stored_tensors(tmp_path)
    gc.collect()
    gc.disable()
    try:
        before = num_tensors()
        room.run(BeginUpdate())
        room.run(ReceiveTensors(source=FolderSource(path=str(tmp_path))))
        room.run(given(tensors))
        assert num_tensors() >= before + len(tensors)
        with contextlib.suppress(WeightUpdateError):
            if at == "tensors":
                room.run(given({"model.norm.weigth": torch.zeros(32)}))
            (tmp_path / "model.safetensors").touch()
            room.run(FinishUpdate())
        assert num_tensors() <= before + 2, "but for the refused one and its bytes"
    finally:
        gc.enable()
