"""Tests that share a process do not meet: what one leaves, the next does not find."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch


def process() -> list[object]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    handler = signal.getsignal(signal.SIGHUP)
    torch_s = torch.get_num_threads(), torch.get_default_dtype()
    return [environment, os.getcwd(), handler, *sys.path, logging.getLogger().level, *torch_s]


BEFORE = process()


def test_one_leaves_much(tmp_path: Path) -> None:
    os.environ["LEFT"] = "1"
    os.environ.pop("PATH")
    os.chdir(tmp_path)
    sys.path.append("left")
    signal.signal(signal.SIGHUP, lambda *_: None)  # nohup ignores it
    logging.getLogger().setLevel(5)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    now = process()
    assert all(now[i] != BEFORE[i] for i in (0, 1, 2, -3, -2, -1))
    assert len(now) == len(BEFORE) + 1


def test_the_next_finds_nothing() -> None:
    assert process() == BEFORE


@pytest.mark.parametrize("used", [0, 9])
def test_draws_are_those_of_the_name(request: pytest.FixtureRequest, used: int) -> None:
    seed = zlib.crc32(request.node.nodeid.encode())
    assert random.random() == random.Random(seed).random()
    assert np.random.rand() == np.random.RandomState(seed).rand()
    generator = torch.Generator().manual_seed(seed)
    assert torch.rand(()) == torch.rand((), generator=generator)
    torch.rand(used)
