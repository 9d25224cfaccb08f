"""Tensors of a folder that threads read ahead: those that were asked for, in any order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import WeightUpdateError
from engine.weights import folder_tensors
from engine.weights.folder_tensors import FolderTensors

NUM_TENSORS, NUM_BYTES = 24, 4 * 100
GPU = torch.device("cuda")


class CountedTensors(FolderTensors):
    """Reads ahead as for a GPU, into the memory that there is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, GPU)
        self.num_reads, self.most_ahead = 0, 0

    def _memory(self, info: TensorInfo) -> torch.Tensor:
        self.num_reads += 1
        self.most_ahead = max(self.most_ahead, self._num_bytes)
        return torch.empty(info.shape, dtype=info.dtype)


@pytest.fixture
def tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedTensors:
    """Two files of tensors, each full of its place; five are read ahead."""
    monkeypatch.setattr(folder_tensors, "AHEAD_BYTES", 5 * NUM_BYTES)
    for part in range(2):
        held = {f"{part}.{i:02}": torch.full((100,), 12.0 * part + i) for i in range(12)}
        save_file(held, tmp_path / f"{part}.safetensors")
    return CountedTensors(tmp_path)


def test_tensors_in_order_are_read_once(tensors: CountedTensors) -> None:
    for index in range(NUM_TENSORS):
        assert tensors.stored[index].name == f"{index // 12}.{index % 12:02}"
        for _ in range(3):  # as pieces of a joined tensor are
            assert tensors.read(index).tolist() == [float(index)] * 100
    assert tensors.num_reads == NUM_TENSORS
    assert NUM_BYTES < tensors.most_ahead <= 5 * NUM_BYTES


@pytest.mark.parametrize("seed", range(3))
def test_tensors_in_any_order(tensors: CountedTensors, seed: int) -> None:
    order = random.Random(seed).choices(range(NUM_TENSORS), k=100)
    for index in [*range(0, NUM_TENSORS, 2), *order, *range(NUM_TENSORS)]:
        assert tensors.read(index).tolist() == [float(index)] * 100
    assert tensors.most_ahead <= 5 * NUM_BYTES


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightUpdateError, match="is no folder that this server sees"):
        FolderTensors(tmp_path / "none", GPU)
