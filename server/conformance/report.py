"""The report of a run: a table, JSON, and a page of HTML that asks for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from msgspec import structs

from server.conformance.result import CheckResult
from server.conformance.run import meaning

_WIDTHS = (11, 32, 11, 52, 26, 0)
_HEADER = ("group", "check", "result", "measured", "wanted", "false alarm")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #d8dbe0; --soft: #5d646e;
  --pass: #22863a; --fail: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #16181c; --faint: #363a42;
  --soft: #a0a7b2; --pass: #6fcf85; --fail: #f28b82; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.87em; }
th, td { padding: 0.3em 0.7em; text-align: left; border-bottom: 1px solid var(--faint);
  vertical-align: top; }
.about, small { color: var(--soft); }
.pass { color: var(--pass); } .fail { color: var(--fail); font-weight: 600; }
"""


def header() -> str:
    """The table's first line."""
    return _row(_HEADER)


def line(result: CheckResult) -> str:
    """A check's line."""
    status = "FAIL" if result.status == "fail" else result.status
    cells = result.group, result.check, status, result.measured, result.wanted, odds(result)
    return _row(cells)


def odds(result: CheckResult) -> str:
    """The odds of a false alarm in words; none where the check did not judge."""
    if result.status not in ("pass", "fail"):
        return ""
    return f"{result.odds:.0e}" if result.odds else "never"


def _row(cells: Sequence[str]) -> str:
    padded = (
        " ".join(cell.split()).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)
    )
    return " ".join(padded).rstrip()


def summary(results: Sequence[CheckResult]) -> str:
    """How many checks came out how."""
    count = {
        status: sum(result.status == status for result in results)
        for status in ("pass", "fail", "refused", "not judged")
    }
    total = sum(result.odds for result in results if result.status in ("pass", "fail"))
    return (
        f"{len(results)} checks: {count['pass']} pass, {count['fail']} fail, {count['refused']} "
        f"refused, {count['not judged']} not judged; odds of any false alarm at most {total:.0e}"
    )


def document(results: Sequence[CheckResult], server: dict[str, Any]) -> dict[str, Any]:
    """The report as JSON."""
    checks = [
        {**structs.asdict(result), "should_be": meaning(result.group, result.check)}
        for result in results
    ]
    return {"server": server, "summary": summary(results), "checks": checks}


def page(results: Sequence[CheckResult], server: dict[str, Any]) -> str:
    """The report as HTML."""
    rows = "".join(
        f"<tr><td>{escape(result.group)}<td>{escape(result.check)}<br>"
        f"<small>{escape(meaning(result.group, result.check))}</small>"
        f'<td class="{result.status.partition(" ")[0]}">{escape(result.status)}'
        f"<td>{escape(result.measured)}<td>{escape(result.wanted)}<td>{odds(result)}</tr>\n"
        for result in results
    )
    cells = "".join(f"<th>{name}" for name in _HEADER)
    where = f"{server['model']} at {server['url']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Conformance of '
        f"{escape(where)}</title><style>{_STYLE}</style>\n<h1>Conformance of {escape(where)}</h1>\n"
        f'<p class="about">{escape(summary(results))}; {escape(server["made"])}.</p>\n'
        f'<div class="scroll"><table><tr>{cells}</tr>\n{rows}</table></div></html>\n'
    )
