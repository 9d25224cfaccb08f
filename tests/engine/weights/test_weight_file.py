"""Files of weights that are read as safetensors reads them, also while others write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contracts.weights import WeightUpdateError
from engine.models.weights.stored import TORCH_TYPES
from engine.weights.weight_file import WeightFile

TENSORS = {
    **{f"of.{name}": torch.arange(6).view(2, 3).to(dtype) for name, dtype in TORCH_TYPES.items()},
    "number": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    own = tmp_path / "model.safetensors"
    save_file(TENSORS, own, {"format": "pt"})
    return own


def read_all(file: WeightFile) -> dict[str, torch.Tensor]:
    found = {}
    for tensor in file.tensors:
        found[tensor.name] = torch.empty(tensor.info.shape, dtype=tensor.info.dtype)
        file.read(tensor, found[tensor.name])
    return found


def test_tensors_are_those_that_safetensors_reads(path: Path) -> None:
    found, wanted = read_all(WeightFile(path)), load_file(path)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        raw = (each.view(-1).view(torch.uint8) for each in (found[name], tensor))
        assert torch.equal(*raw), name


def test_a_file_that_is_cut_off_or_overwritten_is_refused(path: Path) -> None:
    for write in (lambda: os.truncate(path, 4096), lambda: path.write_bytes(path.read_bytes())):
        save_file({"a": torch.zeros(100_000)}, path)
        os.utime(path, ns=(0, 0))
        file = WeightFile(path)
        file.check_unchanged()
        write()
        with pytest.raises(WeightUpdateError, match=r"model\.safetensors was written while"):
            file.check_unchanged()
        with pytest.raises(WeightUpdateError, match="begin the update again"):
            read_all(file)


def test_a_file_whose_name_is_taken_is_read_to_the_end(path: Path) -> None:
    file = WeightFile(path)
    save_file({"other": torch.zeros(3)}, path.with_name("other"))
    path.with_name("other").rename(path)
    file.check_unchanged()
    assert read_all(file).keys() == TENSORS.keys()
    path.unlink()
    assert read_all(file).keys() == TENSORS.keys()


def test_files_are_closed(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = [WeightFile(path) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    del files
    assert len(os.listdir("/proc/self/fd")) == before


def header(length: int | None = None, **fields: Any) -> bytes:
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | fields
    raw = json.dumps({"a": tensor}).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(8)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1234567",
        header(length=1 << 40),
        header(length=3),
        (4).to_bytes(8, "little") + b"null",
        (2).to_bytes(8, "little") + b"[]",
        header(dtype="F4"),
        header(shape=[3]),
        header(shape=[-1]),
        header(shape="ab"),
        header(data_offsets=[4, 12]),
        header(data_offsets=[-8, 0]),
        header(data_offsets=[0]),
        header(data_offsets=None),
    ],
)
def test_what_is_no_file_of_safetensors(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(WeightUpdateError, match=r"x\.safetensors") as caught:
        WeightFile(tmp_path / "x.safetensors")
    assert caught.value.code == "bad_source"
    (tmp_path / "x.safetensors").write_bytes(header())
    assert [each.name for each in WeightFile(tmp_path / "x.safetensors").tensors] == ["a"]
