"""Weights in the memory of another process on the same GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from engine.contracts.weights import BeginUpdate, FinishUpdate, IpcSource, ReceiveTensors
from engine.weights.commands import RankWeights
from sampling.device.ranks import LoneRank
from tests.engine.models.rewriting import Tensors, stored_tensors, text_logits, write_other
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.weights.grouped_rooms import ROOT

pytestmark = pytest.mark.gpu


@contextmanager
def shared(folder: Path, tensors: Tensors) -> Iterator[IpcSource]:
    """The tensors of a folder on the GPU of another process."""
    handles = folder / "handles"
    program = "tests.engine.weights.ipc_trainer"
    command = [sys.executable, "-m", program, str(folder), str(handles)]
    pipe = subprocess.PIPE
    trainer = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"shared\n"
        yield IpcSource(handles=(handles.read_bytes(),), names=tuple(tensors))
    finally:
        trainer.communicate()


def test_tensors_of_another_process(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path / "old")
    write_other(tmp_path / "old", tmp_path / "new")
    model = load(tmp_path / "old", on="cuda")
    room = RankWeights(model.named_weights(), {}, model.device, LoneRank())
    with shared(tmp_path / "new", stored_tensors(tmp_path / "new")) as source:
        room.run(BeginUpdate(check=True))
        room.run(ReceiveTensors(source=source))
    room.run(FinishUpdate())  # the trainer has gone
    wanted = text_logits(load(tmp_path / "new", on="cuda"))
    assert torch.equal(text_logits(model), wanted)
