"""Pickled handles of tensors: SGLang's layouts on the host, and what no tensor is made of."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contracts.weights import (
    BeginUpdate,
    FinishUpdate,
    IpcSource,
    ReceiveTensors,
    WeightUpdateError,
)
from engine.weights.handles import unpickled
from tests.engine.models.rewriting import Tensors, assert_holds, write_other
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.weights.rooms import room_of


@dataclass
class FlattenedTensorMetadata:
    """SGLang's fields of a tensor in a bucket."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


@pytest.fixture(autouse=True)
def shared_by_files() -> Iterator[None]:
    """Memory of the host has handles that any process may open."""
    shared: Any = torch.multiprocessing  # it is not typed
    strategy = shared.get_sharing_strategy()
    shared.set_sharing_strategy("file_system")
    yield
    shared.set_sharing_strategy(strategy)


def pickled(value: object) -> bytes:
    """As SGLang's `MultiprocessingSerializer` pickles, which knows tensors' memory."""
    raw = io.BytesIO()
    ForkingPickler(raw).dump(value)
    return raw.getvalue()


def bucket_of(tensors: Tensors) -> dict[str, object]:
    metadata, start = [], 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        metadata.append(
            FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, start, end, end - start)
        )
        start = end
    raw = [tensor.view(-1).view(torch.uint8) for tensor in tensors.values()]
    return {"flattened_tensor": torch.cat(raw), "metadata": metadata}


@pytest.mark.parametrize("layout", ["tensors", "flattened_bucket"])
def test_tensors_of_a_pickle(layout: str, tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    content = list(new.items()) if layout == "tensors" else bucket_of(new)
    model = load(tmp_path / "old")
    room = room_of(model)
    room.run(BeginUpdate())
    source = IpcSource(handles=(pickled(content),), layout=layout)  # type: ignore[arg-type]
    room.run(ReceiveTensors(source=source))
    room.run(FinishUpdate())
    assert_holds(model.named_weights(), new)


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("value", [_Runs(), Path("x"), print])
def test_pickles_of_anything_else_are_refused(value: object) -> None:
    with pytest.raises(WeightUpdateError, match="no part of a tensor") as error:
        unpickled(pickle.dumps([value]))
    assert error.value.code == "bad_source"


def test_handles_for_another_number_of_ranks(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    room = room_of(load(tmp_path))
    room.run(BeginUpdate())
    with pytest.raises(WeightUpdateError, match="handles for 2 ranks, the engine has 1"):
        room.run(ReceiveTensors(source=IpcSource(handles=(b"", b""))))
