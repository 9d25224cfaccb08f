"""Weights that come over a group, for tests."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engine.contracts.weights import (
    BeginUpdate,
    BucketSource,
    DescribedSource,
    EndGroup,
    GroupSource,
    InitGroup,
    ReceiveTensors,
    WeightUpdateError,
)
from engine.weights.commands import RankWeights
from tests.engine.models.rewriting import Tensors
from tests.engine.weights.trainer import BUFFER_BYTES

ROOT = Path(__file__).parents[3]
LOCALHOST, NAME = "127.0.0.1", "weights"


def free_port() -> int:
    with socket.socket() as own:
        own.bind((LOCALHOST, 0))
        port: int = own.getsockname()[1]
        return port


def group_of(port: int, **fields: object) -> InitGroup:
    settings: dict[str, object] = {
        "name": NAME,
        "world_size": 2,
        "rank_offset": 1,
        "master_address": LOCALHOST,
        "master_port": port,
        "buffer_bytes": BUFFER_BYTES,
    }
    return InitGroup(**(settings | fields))  # type: ignore[arg-type]


def source_of(tensors: Tensors, how: str) -> GroupSource | BucketSource | DescribedSource:
    if how == "described":
        return DescribedSource(group=NAME, path="/no/such/folder")
    fields = {
        "group": NAME,
        "names": tuple(tensors),
        "dtypes": tuple(str(each.dtype).removeprefix("torch.") for each in tensors.values()),
        "shapes": tuple(tuple(each.shape) for each in tensors.values()),
    }
    if how == "bucket":
        return BucketSource(**fields)  # type: ignore[arg-type]
    return GroupSource(**fields, packed=how == "packed")  # type: ignore[arg-type]


def assert_unknown(room: RankWeights) -> None:
    """Assert that there is no group, and that the room goes on."""
    room.run(BeginUpdate())
    for command in (EndGroup(name=NAME), ReceiveTensors(source=source_of({}, "alone"))):
        with pytest.raises(WeightUpdateError, match=f"no group '{NAME}'; there are: none") as error:
            room.run(command)
        assert error.value.code == "unknown_group"
