"""A trainer whose tensors are on the GPU of its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.contracts.weights import IpcSource
from tests.engine.models.rewriting import Tensors
from tests.engine.weights.grouped_rooms import ROOT


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
