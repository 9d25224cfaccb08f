"""The report of a run: one page of HTML with everything in it, tables and charts.

It has no script and asks for nothing, so it can be kept, mailed and opened without a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from server.bench.charts import Axis, Line, line_chart
from server.bench.figures import CURVE
from server.bench.results import BenchResults, Point
from server.bench.table import COLUMNS, notes, number

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #d8dbe0; --soft: #5d646e;
  --c0: #1f6fb4; --c1: #c4500d; --c2: #22863a; --c3: #8250bf; --c4: #b3261e; --c5: #00798c;
  --c6: #8a6d00; --c7: #b0307a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #16181c; --faint: #363a42;
  --soft: #a0a7b2; --c0: #6cb2f0; --c1: #f2935c; --c2: #6fcf85; --c3: #bf9bf0; --c4: #f28b82;
  --c5: #5cc8d8; --c6: #dcc04c; --c7: #ef8fc4; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.87em; }
th, td { padding: 0.25em 0.7em; text-align: right; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.about, .legend, figcaption { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 1em; }
figure { margin: 0; }
figure > svg { width: 100%; height: auto; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg .title { font-size: 13px; font-weight: 600; }
svg .tick { text-anchor: middle; } svg .side { text-anchor: end; }
svg .grid { stroke: var(--faint); stroke-width: 1; }
polyline { fill: none; stroke-width: 2; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.2em 1em; padding: 0; margin: 0;
  font-size: 0.85em; }
.legend svg { width: 0.8em; height: 0.8em; }
.failed { color: var(--c4); }
""" + "\n".join(
    f"polyline.c{i} {{ stroke: var(--c{i}); }} circle.c{i}, rect.c{i} {{ fill: var(--c{i}); }}"
    for i in range(8)
)

_PERCENTS = Axis(title="percentile", marks=[(i, f"{p:g}") for i, p in enumerate(CURVE)])
_SECONDS = Axis(title="seconds", scale="log")


def write_report(results: BenchResults, path: Path) -> None:
    """Write the report as a file of HTML."""
    path.write_text(report(results), encoding="utf-8")


def report(results: BenchResults) -> str:
    """The report as HTML."""
    title = f"{escape(results.model)} at {escape(results.base_url)}"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    by_workload = groupby(results.points, key=lambda point: point.workload)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f'<h1>{title}</h1>\n<p class="about">{escape(_about(results))}</p>',
            *_table(results.points),
            *_figures(list(_overall(results.points))),
            *(part for name, points in by_workload for part in _section(name, list(points))),
            "</body>\n</html>\n",
        ]
    )


def _about(results: BenchResults) -> str:
    lengths = [
        f"{count} {what} tokens"
        for what, count in (("input", results.input_tokens), ("output", results.output_tokens))
        if count is not None
    ]
    made = [f"seed {results.seed}", f"ids below {results.vocab_size}", *lengths]
    client = f"{results.processes} client processes on {results.cores} cores ({results.platform})"
    return f"{results.started}. {client}; {', '.join(made)}. tailrace {results.version}."


def _table(points: Sequence[Point]) -> Iterator[str]:
    titles = "".join(f"<th>{escape(title)}</th>" for title, _, _ in COLUMNS)
    yield f'<div class="scroll"><table><tr><th>workload</th><th>at</th>{titles}</tr>'
    for point in points:
        cells = (point.figures.get(name) for _, name, _ in COLUMNS)
        shown = (
            "-" if value is None else number(value * factor)
            for value, (_, _, factor) in zip(cells, COLUMNS, strict=True)
        )
        row = "".join(f"<td>{cell}</td>" for cell in (escape(point.where), *shown))
        yield f"<tr><td>{escape(point.workload)}</td>{row}</tr>"
    yield "</table></div>"
    for point in points:
        for note in notes(point):
            words = escape(f"{point.workload} at {point.where}: {note}")
            yield f'<p class="failed">{words}</p>'


def _overall(points: Sequence[Point]) -> Iterator[str]:
    """Throughput and latency against concurrency, a line a workload."""
    found = sorted({point.concurrency for point in points if point.concurrency is not None})
    marks = [(float(concurrency), str(concurrency)) for concurrency in found]
    across = Axis(title="requests under way at once", scale="log", marks=marks)
    for title, name, unit in (
        ("Throughput", "output_tokens_per_s", "output tokens a second"),
        ("Requests", "requests_per_s", "requests a second"),
        ("Latency, 99th percentile", "latency_p99_s", "seconds"),
        ("First token, 99th percentile", "first_token_p99_s", "seconds"),
    ):
        up = Axis(title=unit, scale="log" if unit == "seconds" else "linear")
        yield line_chart(title, across, up, list(_against_concurrency(points, name)))


def _against_concurrency(points: Sequence[Point], figure: str) -> Iterator[Line]:
    for name, group in groupby(points, key=lambda point: point.workload):
        found = sorted(
            (float(point.concurrency), point.figures[figure])
            for point in group
            if point.concurrency is not None and figure in point.figures
        )
        yield Line(name=name, points=found)


def _section(name: str, points: Sequence[Point]) -> Iterator[str]:
    """What one workload's requests took, a line a concurrency."""
    charts = [
        line_chart(title, _PERCENTS, _SECONDS, list(_percentiles(points, curve)))
        for title, curve in (
            ("Latency", "latency"),
            ("First token", "first_token"),
            ("Time a token", "token"),
            ("Longest gap of a stream", "longest_gap"),
        )
    ]
    shares = Axis(title="% of gaps")
    gaps = Axis(title="seconds between chunks", scale="log")
    charts.append(line_chart("Gaps between tokens", gaps, shares, list(_gaps(points))))
    yield f"<h2>{escape(name)}</h2>"
    yield from _figures(charts)


def _percentiles(points: Sequence[Point], curve: str) -> Iterator[Line]:
    for point in points:
        values = [(float(i), value) for i, (_, value) in enumerate(point.curves.get(curve, []))]
        yield Line(name=f"at {point.where}", points=values)


def _gaps(points: Sequence[Point]) -> Iterator[Line]:
    for point in points:
        counts = point.curves.get("gap_counts", [])
        total = sum(count for _, count in counts)
        shares = [(bound, 100.0 * count / total) for bound, count in counts]
        yield Line(name=f"at {point.where}", points=shares, is_marked=False)


def _figures(charts: Sequence[str]) -> Iterator[str]:
    shown = [f"<figure>{chart}</figure>" for chart in charts if chart]
    if shown:
        yield f'<div class="charts">{"".join(shown)}</div>'
