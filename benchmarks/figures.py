"""Figures: what was measured, what it must be, what checked it.

A figure is {name, value, unit, sense, must, aim, bound, command, check, gpu, trees}: what it must
be at least or at most, what it ought to be, the best it could be on this GPU, how to measure it,
which comparison of tokens stood beside it, and on which GPU and git trees it was measured.
"""

from __future__ import annotations

from typing import Any

PRODUCT_TFLOPS = 790
"""The rate of large bfloat16 products on an H200, measured with random data."""

Figure = dict[str, Any]


def figure(
    name: str,
    value: float,
    unit: str,
    sense: str,
    must: float | None,
    bound: float | None,
    aim: float | None = None,
) -> Figure:
    """One figure; `must` None only records it."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "sense": sense,
        "must": must,
        "aim": aim,
        "bound": bound,
    }


def is_good(made: Figure) -> bool:
    """Whether a figure is what it must be."""
    value, must = made["value"], made["must"]
    good: bool = must is None or (value <= must if made["sense"] == "<=" else value >= must)
    return good


def report(made: Figure) -> bool:
    """Print a figure; return whether it is what it must be."""
    good, must = is_good(made), made["must"]
    wanted = "" if must is None else f" (must be {made['sense']} {must})"
    word = "ok  " if good else "MISS"
    print(f"{word} {made['name']}: {made['value']} {made['unit']}{wanted}", flush=True)
    return good


def table(figures: list[Figure]) -> str:
    """Figures that must or ought to be something: name, must, aim, value; misses are marked."""
    rows = [("figure", "must", "aim", "got")]
    for each in figures:
        if each["must"] is None and each.get("aim") is None:
            continue
        wanted = [
            "" if limit is None else f"{each['sense']} {limit:g}"
            for limit in (each["must"], each.get("aim"))
        ]
        got = f"{each['value']:g} {each['unit']}" + ("" if is_good(each) else " MISS")
        rows.append((each["name"], *wanted, got))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=False))
        + f"  {row[3]}"
        for row in rows
    ]
    return "\n".join(lines)
