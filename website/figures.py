"""The page of the measured figures, with charts made of `benchmarks/h200.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from website.canvas import Bar, bars
from website.reference import table

STORED = Path(__file__).parent.parent / "benchmarks" / "h200.json"


class Chart(NamedTuple):
    """Some of the figures in one picture.

    Attributes:
        file: its name. pattern: matches their names; its groups, joined, are their labels.
    """

    file: str
    title: str
    unit: str
    pattern: str


CHARTS = (
    Chart("throughput", "Over HTTP", "tokens/s", r"(qwen3[\w.-]+), `(\w+)` over HTTP"),
    Chart("one-stream", "One stream, a token", "ms", r"(qwen3[\w.-]+), one stream(.*)"),
    Chart("scoring", "Scored prompts", "requests/s", r"qwen3-0.6b, (separate score requests.*)"),
    Chart("sampling", "The sampler", "µs", r"sampling: (.*)"),
    Chart("verification", "Verification of drafts", "µs", r"verification: (.*)"),
    Chart("speculation", "Speculation", "times faster", r"speculation: (.*): times faster"),
    Chart("tails", "Rare tokens that won", "wins, of those due", r"tail: (.*), counted"),
)


def pages() -> dict[str, str]:
    """The page and its charts, by their paths in the site."""
    stored = json.loads(STORED.read_text())
    figures: list[dict[str, Any]] = stored["figures"]
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    parts = [
        "# Measured",
        f"One {stored['gpu']}; {versions}. A blue bar is what was measured, a red mark what it "
        "must keep to, an orange mark what nothing can beat, or what is due. Where less is better "
        "the bar ends before the red mark. [Performance](performance.md) says how to get each.",
    ]
    made: dict[str, str] = {}
    for chart in CHARTS:
        path = f"measured/{chart.file}.svg"
        made[path] = bars(chart.title, chart.unit, _bars(chart, figures))
        parts.append(f"![{chart.title}, {chart.unit}]({path})")
    rows = [
        [
            f["name"],
            f"{f['value']:,} {f['unit']}",
            "" if f["must"] is None else f"{f['sense']} {f['must']:,}",
            "" if f["bound"] is None else f"{f['bound']:,}",
            f.get("gpu", stored["gpu"]),
            f"`{f['command']}`",
        ]
        for f in figures
    ]
    parts += ["## All of them", table(("figure", "value", "must", "bound", "GPU", "command"), rows)]
    made["measured.md"] = "\n\n".join(parts) + "\n"
    return made


def _bars(chart: Chart, figures: list[dict[str, Any]]) -> list[Bar]:
    found = []
    for figure in figures:
        if match := re.fullmatch(chart.pattern, figure["name"]):
            label = ", ".join(part.strip(" ,") for part in match.groups() if part.strip(" ,"))
            found.append(Bar(label, figure["value"], figure["must"], figure["bound"]))
    return found
