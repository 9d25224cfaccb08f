"""Pictures as SVG: shapes in pixels, numbers of two digits, the same text every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

INK, FAINT = "#808080", "#80808060"
"""Text and lines that can be read on white and on black."""
BLUE, ORANGE, GREEN, RED = "#3b82c4", "#d9822b", "#4b9b5f", "#c0504d"
_FONT = "font-family='sans-serif' font-size='12'"


class Canvas:
    """A picture that grows shape by shape; y counts downwards."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._size = width, height
        self._title = title
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fill a rectangle."""
        place = f"x='{_n(x)}' y='{_n(y)}' width='{_n(width)}' height='{_n(height)}'"
        self._shapes.append(f"<rect {place} fill='{colour}'/>")

    def line(
        self, points: Sequence[tuple[float, float]], colour: str = INK, width: float = 1.0
    ) -> None:
        """Draw a line through points."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        style = f"fill='none' stroke='{colour}' stroke-width='{_n(width)}'"
        self._shapes.append(f"<polyline points='{path}' {style}/>")

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", colour: str = INK
    ) -> None:
        """Write words; the anchor says whether they start, have their middle or end at x."""
        place = f"x='{_n(x)}' y='{_n(y)}' text-anchor='{anchor}' fill='{colour}'"
        self._shapes.append(f"<text {place}>{escape(words)}</text>")

    def svg(self) -> str:
        """The whole picture; its title is what a screen reader says."""
        width, height = self._size
        size = f"width='{_n(width)}' height='{_n(height)}' viewBox='0 0 {_n(width)} {_n(height)}'"
        head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {_FONT}>"
        body = "\n".join([f"<title>{escape(self._title)}</title>", *self._shapes])
        return f"{head}\n{body}\n</svg>\n"


class Bar(NamedTuple):
    """One bar of a chart.

    Attributes:
        must: a value it has to keep to; None for none.
        bound: what nothing can beat; None where that is not known.
    """

    label: str
    value: float
    must: float | None = None
    bound: float | None = None


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """A chart of horizontal bars with their values, marks at what they must keep to, and bounds."""
    left, span, step = 330.0, 330.0, 24.0
    canvas = Canvas(left + span + 90.0, 34.0 + step * len(rows), f"{title}, {unit}")
    canvas.text(0, 16, f"{title}, {unit}")
    known = [x for row in rows for x in (row.value, row.must, row.bound) if x is not None]
    scale = span / (max(known, default=0.0) or 1.0)
    for i, row in enumerate(rows):
        y = 28.0 + step * i
        canvas.text(left - 8, y + 13, row.label, "end")
        canvas.rect(left, y, max(row.value * scale, 1.0), 16, BLUE)
        for mark, colour in ((row.must, RED), (row.bound, ORANGE)):
            if mark is not None:
                canvas.line(
                    [(left + mark * scale, y - 2), (left + mark * scale, y + 18)], colour, 2
                )
        canvas.text(left + span + 8, y + 13, f"{row.value:,.10g}")
    return canvas.svg()


def _n(number: float) -> str:
    """Two digits, and no more zeros than needed."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number else "0"
