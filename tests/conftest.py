"""What all tests share: each begins alike, and leaves the process as it was."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.interpreter import quicken

    quicken()

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)  # not pytest's own ALRM


@pytest.fixture(scope="module", autouse=True)
def _draws_of_a_file(request: pytest.FixtureRequest) -> None:
    """What the fixtures of a file draw depends on its name alone."""
    _seed(request.node.nodeid)


@pytest.fixture(autouse=True)
def _draws_of_a_test(request: pytest.FixtureRequest) -> None:
    """What a test draws depends on its name, not on what its process ran before."""
    _seed(request.node.nodeid)


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    """A test that changes its process fails, rather than another one that happens to follow it.

    Which tests follow each other in a process depends on how long others took.
    """
    before = _process()
    yield
    after = _process()
    if left := [name for name, value in before.items() if after[name] != value]:
        _put_back(before)
        pytest.fail("".join(f"{name}: {before[name]} -> {after[name]}\n" for name in left))


def _seed(name: str) -> None:
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _process() -> dict[str, Any]:
    """What functions of this process read without being given it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    state = {
        "environment": environment,
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "path": list(sys.path),
        "log level": logging.getLogger().level,
    }
    if (torch := sys.modules.get("torch")) is not None:
        state["threads of torch"] = torch.get_num_threads()
        state["dtype of torch"] = torch.get_default_dtype()
    return state


def _put_back(state: dict[str, Any]) -> None:
    """Of what a test changed, what others would stumble over."""
    for name in os.environ.keys() - state["environment"].keys():
        if not name.startswith("PYTEST_"):
            del os.environ[name]
    os.environ.update(state["environment"])
    os.chdir(state["folder"])
    for number, handler in zip(SIGNALS, state["signals"], strict=True):
        signal.signal(number, handler)
    sys.path[:] = state["path"]
    logging.getLogger().setLevel(state["log level"])
    if "dtype of torch" in state:
        sys.modules["torch"].set_num_threads(state["threads of torch"])
        sys.modules["torch"].set_default_dtype(state["dtype of torch"])
