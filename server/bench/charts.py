"""Charts as SVG: lines over two axes, linear or logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from server.bench.table import number

Scale = Literal["linear", "log"]
XY = tuple[float, float]

WIDTH, HEIGHT = 460, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 44
NUM_COLOURS = 8
"""Classes `c0` to `c7`, whose colours the page defines for light and dark."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a chart.

    Attributes:
        marks: values with a label of their own, in place of round numbers.
    """

    title: str
    scale: Scale = "linear"
    marks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A named line through points, in their order."""

    name: str
    points: Sequence[XY]
    is_marked: bool = True


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Line]) -> str:
    """A chart as an `svg` element; empty text where there is nothing to draw.

    Values that a logarithmic axis cannot show are left out.
    """
    shown = [_drawable(line, x, y) for line in series]
    shown = [line for line in shown if line.points]
    if not shown:
        return ""
    values = [point for line in shown for point in line.points]
    across = _Mapping(x, [p[0] for p in values], _LEFT, WIDTH - _RIGHT)
    up = _Mapping(y, [p[1] for p in values], HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>',
        *_x_axis(x, across),
        *_y_axis(y, up),
        *(_drawn(line, i, across, up, dict(x.marks)) for i, line in enumerate(shown)),
        "</svg>",
    ]
    return "\n".join(parts) + legend([line.name for line in shown])


def legend(names: Sequence[str]) -> str:
    """The names of lines with their colours; empty text for a single one without a name."""
    if names == [""]:
        return ""
    items = (
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="c{i % NUM_COLOURS}" '
        f'width="10" height="10"/></svg> {escape(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _drawable(line: Line, x: Axis, y: Axis) -> Line:
    kept = [
        (a, b)
        for a, b in line.points
        if math.isfinite(a + b)
        and (x.scale == "linear" or a > 0)
        and (y.scale == "linear" or b > 0)
    ]
    return Line(name=line.name, points=kept, is_marked=line.is_marked)


class _Mapping:
    """From values to a coordinate, over the range of the values."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self._place: Callable[[float], float] = math.log10 if axis.scale == "log" else float
        low, high = min(values), max(values)
        if axis.scale == "linear" and not axis.marks:
            low, high = min(low, 0.0), high * 1.05
        elif axis.scale == "log" and not axis.marks:
            room = 1.1 if high > 2.0 * low else 2.0
            low, high = low / room, high * room
        self.low, self.high = low, high
        self._start, self._end = start, end

    def __call__(self, value: float) -> str:
        low, high = self._place(self.low), self._place(self.high)
        share = (self._place(value) - low) / (high - low) if high > low else 0.5
        return f"{self._start + share * (self._end - self._start):.1f}"


def _x_axis(axis: Axis, across: _Mapping) -> list[str]:
    bottom = HEIGHT - _BOTTOM
    parts = []
    for value, words in _ticks(axis, across):
        at = across(value)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 15}">{escape(words)}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    name = f'<text class="tick" x="{middle}" y="{HEIGHT - 8}">{escape(axis.title)}</text>'
    return [*parts, name]


def _y_axis(axis: Axis, up: _Mapping) -> list[str]:
    parts = []
    for value, words in _ticks(axis, up):
        at = up(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="side" x="{_LEFT - 6}" y="{at}" dy="4">{escape(words)}</text>')
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    rotated = f'transform="translate(12 {middle}) rotate(-90)"'
    return [*parts, f'<text class="tick" {rotated}>{escape(axis.title)}</text>']


def _ticks(axis: Axis, mapping: _Mapping) -> list[tuple[float, str]]:
    """Values with their labels."""
    if axis.marks:
        return list(axis.marks)
    low, high = mapping.low, mapping.high
    if axis.scale == "log":
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if high <= 1e3 * low else (1,)
        values = [step * 10.0**decade for decade in decades for step in steps]
        return [(value, _short(value)) for value in values if low <= value <= high]
    step = _round_step((high - low) / 5.0)
    count = math.floor(high / step) if step else 0
    return [(i * step, _short(i * step)) for i in range(count + 1)]


def _round_step(rough: float) -> float:
    """The next larger of 1, 2 and 5 times a power of ten."""
    if rough <= 0.0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)


def _short(value: float) -> str:
    if value >= 1e4:
        return f"{value / 1e3:g}k" if value < 1e6 else f"{value / 1e6:g}M"
    return f"{value:.6g}"


def _drawn(
    line: Line, index: int, across: _Mapping, up: _Mapping, labels: Mapping[float, str]
) -> str:
    colour = f"c{index % NUM_COLOURS}"
    path = " ".join(f"{across(x)},{up(y)}" for x, y in line.points)
    parts = [f'<polyline class="{colour}" points="{path}"/>']
    for x, y in line.points if line.is_marked else ():
        words = escape(f"{line.name}, {labels.get(x, _short(x))}: {number(y)}".removeprefix(", "))
        parts.append(
            f'<circle class="{colour}" cx="{across(x)}" cy="{up(y)}" r="3.5">'
            f"<title>{words}</title></circle>"
        )
    return "".join(parts)
