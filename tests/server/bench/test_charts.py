"""Charts are well-formed, keep to their frame, and label round numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from server.bench.charts import HEIGHT, WIDTH, Axis, Line, Scale, line_chart

X, Y = Axis(title="x < y"), Axis(title="s", scale="log")


def drawn(x: Axis, y: Axis, *points: tuple[float, float]) -> ElementTree.Element:
    return ElementTree.fromstring(
        f"<a>{line_chart('t & u', x, y, [Line(name='<a>', points=points)])}</a>"
    )


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter("text")]


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(
    "values", [[1.0], [1.0, 1.0], [1e-4, 3e-4], [0.5, 2e6], [1.0, 2.0, 3.0], [1e-9, 1e9]]
)
def test_points_stay_within_the_frame(scale: Scale, values: list[float]) -> None:
    axis = Axis(title="v", scale=scale)
    root = drawn(axis, axis, *((value, value) for value in values))
    (line,) = root.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(places) == len(values)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    assert places == sorted(places, key=lambda place: (place[0], -place[1]))


def test_what_a_logarithm_cannot_show_is_left_out() -> None:
    root = drawn(X, Y, (1.0, 0.0), (2.0, 5.0), (3.0, float("nan")))
    assert len(list(root.iter("circle"))) == 1
    assert line_chart("t", X, Y, [Line(name="", points=[(1.0, 0.0)])]) == ""


def test_round_numbers() -> None:
    root = drawn(X, X, (0.0, 0.0), (100.0, 23_000.0))
    assert texts(root)[1:7] == ["0", "50", "100", "x < y", "0", "5000"]
    root = drawn(Axis(title="x", scale="log"), Y, (0.01, 1.0), (1.0, 10.0))
    assert [t for t in texts(root) if re.fullmatch(r"[\d.]+", t)][:7] == [
        *("0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"),
    ]


def test_marks_name_their_points() -> None:
    root = drawn(Axis(title="p", marks=[(0.0, "50"), (1.0, "99")]), Y, (0.0, 1.0), (1.0, 2.5))
    assert [title.text for title in root.iter("title")] == ["<a>, 50: 1.000", "<a>, 99: 2.500"]
    assert {"50", "99"} <= set(texts(root))
