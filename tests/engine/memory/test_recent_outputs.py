"""The ring of recent outputs."""

from __future__ import annotations

import numpy as np
import torch

from engine.memory.recent_outputs import END, RecentOutputs
from engine.plan import Admission
from sampling.device.mirror import publish
from tests.engine.choices import choice


def kept(*texts: list[int], max_outputs: int = 8, capacity: int = 12) -> list[int]:
    recent = RecentOutputs(max_outputs, 4, torch.device("cpu"), capacity)
    for text in texts:
        publish(recent.take([np.array(text, dtype=np.int32)], []))
    tokens: list[int] = recent.tokens.tolist()
    return tokens


def test_the_oldest_output_is_dropped_first() -> None:
    found = kept([1, 2], [3, 4], [5, 6, 7], max_outputs=2)
    assert found == [END, END, END, 3, 4, END, 5, 6, 7, END, END, END]


def test_outputs_that_do_not_fit_make_room_and_go_on_at_the_front() -> None:
    found = kept([1] * 4, [2] * 5, [3] * 4)
    assert found == [3, 3, 3, END, END, 2, 2, 2, 2, 2, END, 3]


def test_a_long_output_leaves_its_beginning() -> None:
    assert kept([7] * 100) == [7] * 6 + [END] * 6


def test_rows_that_read_are_noted_at_their_admission() -> None:
    recent = RecentOutputs(8, 3, torch.device("cpu"), 12)
    admitted = [Admission(row, choice([1]), 0, 9, reads_outputs=row == 1) for row in range(3)]
    publish(recent.take([], admitted))
    assert recent.readers.tolist() == [0, 1, 0, 0]
    publish(recent.take([], [Admission(1, choice([1]), 0, 9)]))
    assert recent.readers.tolist() == [0, 0, 0, 0]
