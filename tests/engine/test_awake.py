"""Time in which a process ran."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine import awake as module
from engine.awake import LONGEST_S, AwakeClock


def test_time_counts_but_not_what_passed_without_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=50.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    awake = AwakeClock()
    for _ in range(8):
        clock.now += 0.25
        assert awake.tick() == 0.0
    assert awake.seconds == 2.0
    clock.now += 40.0
    assert awake.tick() == 40.0 - LONGEST_S
    assert awake.seconds == 2.0 + LONGEST_S
