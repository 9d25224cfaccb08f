"""What all tests share: each begins alike, whatever its process ran before."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import zlib
from collections.abc import Iterator

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
def _process_of_a_test() -> Iterator[None]:
    """What a test changes of its process is put back after it.

    Which tests follow it there depends on how long others took, so that what it left would fail
    one of them by chance. Commands that are run in this process do leave something: `tailrace
    serve` sets variables for the processes it starts.
    """
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    log = logging.getLogger()
    level = log.level
    torch = sys.modules.get("torch")
    defaults = None if torch is None else (torch.get_num_threads(), torch.get_default_dtype())
    yield
    _put_back(environment)
    os.chdir(folder)
    sys.path[:] = path
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    log.setLevel(level)
    if torch is not None and defaults is not None:
        num_threads, dtype = defaults
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        torch.set_default_dtype(dtype)


def _put_back(environment: dict[str, str]) -> None:
    """All but what pytest says of itself there."""
    for name in [name for name in os.environ.keys() - environment if not name.startswith("PYTEST")]:
        del os.environ[name]
    for name, value in environment.items():
        if not name.startswith("PYTEST") and os.environ.get(name) != value:
            os.environ[name] = value


def _seed(name: str) -> None:
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
