"""Orders of options, and options as they are shown."""

from __future__ import annotations

from server.endpoints.decisions.question import Option, Question, orders


def test_orders_are_different_and_begin_with_the_request_s() -> None:
    found = orders(5, 64, seed=3)
    assert found[0] == (0, 1, 2, 3, 4)
    assert len(set(found)) == len(found) == 64
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in found)
    assert orders(5, 64, seed=3) == found
    assert orders(5, 64, seed=4) != found


def test_there_are_no_more_orders_than_exist() -> None:
    assert sorted(orders(2, 9, seed=0)) == [(0, 1), (1, 0)]
    assert len(orders(3, 64, seed=0)) == 6
    assert len(orders(255, 3, seed=0)) == 3


def test_strings_are_quoted_beside_booleans() -> None:
    def texts(*values: str | bool) -> list[str]:
        options = tuple(Option(value) for value in values)
        return Question("choice", "which?", options, "questions[0]", "").texts()

    assert texts("true", "b") == ["true", "b"]
    assert texts(True, "true", False) == ["true", '"true"', "false"]
