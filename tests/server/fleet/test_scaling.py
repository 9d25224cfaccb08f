"""How many replicas there should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.fleet.scaling import wanted_replicas


def wanted(waiting: list[float], running: list[float], rows: float = 8) -> int | None:
    def by_name(values: list[float]) -> dict[str, float]:
        return {f"r{i}": value for i, value in enumerate(values)}

    return wanted_replicas(by_name(waiting), by_name(running), by_name([rows] * len(running)))


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        ([], [], None),
        ([0], [0], 1),
        ([0], [8], 1),
        ([1], [8], 2),
        ([30], [8], 5),
        ([0, 0], [3, 2], 2),
        ([0, 0], [2, 2], 1),
        ([0, 0, 0], [0, 0, 0], 2),
        ([2, 0, 0], [8, 8, 8], 3),
        ([3, 0, 0], [8, 8, 8], 4),
    ],
)
def test_the_number(waiting: list[float], running: list[float], expected: int | None) -> None:
    assert wanted(waiting, running) == expected


@given(st.integers(1, 20), st.integers(1, 64), st.integers(0, 4000))
def test_what_it_asks_for_it_keeps(count: int, rows: int, load: int) -> None:
    """With a load that stays, the number comes to rest: it never goes up and down again."""
    went_up = went_down = False
    for _ in range(200):
        running = min(load, count * rows)
        nothing = [0.0] * (count - 1)
        reported = ([float(load - running), *nothing], [float(running), *nothing], float(rows))
        new = wanted(*reported)
        assert new is not None
        assert new >= 1
        went_up, went_down = went_up or new > count, went_down or new < count
        if new == count:
            break
        count = new
    assert new == count
    assert not (went_up and went_down)
