"""What is waited for no longer than a time, a group at an address that never answers among it."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import torch

from engine.contracts.weights import InitGroup, WeightUpdateError
from engine.weights.deadline import within
from engine.weights.groups import WeightGroups
from sampling.device.ranks import LoneRank


def test_what_is_made_in_time_or_raises_is_passed_on() -> None:
    assert within(30.0, lambda: 7) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        within(30.0, lambda: int("x"))


def test_what_takes_longer_is_left_behind() -> None:
    ends = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.05, ends.wait)
    ends.set()


def test_a_group_whose_host_accepts_and_never_answers_does_not_form_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        command = InitGroup(
            name="g",
            master_address="127.0.0.1",
            master_port=silent.getsockname()[1],
            rank_offset=1,
            world_size=2,
            timeout_s=1.0,
        )
        began = time.monotonic()
        with pytest.raises(WeightUpdateError, match=r"did not form .* within 1 s"):
            WeightGroups(torch.device("cpu"), LoneRank()).form(command)
        assert time.monotonic() - began < 15.0, "torch waits until somebody answers"
