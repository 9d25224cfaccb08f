"""Weights that come over a group, for tests."""

from __future__ import annotations

import socket
from pathlib import Path

from engine.contracts.weights import (
    InitGroup,
)
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
