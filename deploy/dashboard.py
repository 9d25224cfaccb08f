"""The Grafana dashboard of the server's metrics, written as JSON.

    python -m deploy.dashboard      # writes deploy/grafana/dashboards/tailrace.json

Panels are rows of a table here; Grafana's JSON has forty lines for each of them. `tests/deploy/`
checks that the file is what this module writes, and that every query finds a series.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "grafana" / "dashboards" / "tailrace.json"

ONE = '{instance=~"$instance"}'
"""The servers that are chosen at the top of the dashboard."""
TIME = "[$__rate_interval]"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3


@dataclass(frozen=True)
class Panel:
    """One graph.

    Attributes:
        queries: in PromQL, by what their lines are called; `{{label}}` stands for a label's value.
        unit: Grafana's name of it.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    words: str = ""


def rate(name: str, *by: str, only: str = "") -> str:
    """The sum of a counter's rates, apart by some labels.

    Args:
        only: another matcher.
    """
    kept = f" by ({', '.join(by)})" if by else ""
    chosen = ONE.replace("}", f", {only}}}") if only else ONE
    return f"sum{kept} (rate(tailrace_{name}{chosen}{TIME}))"


def percentiles(name: str) -> dict[str, str]:
    """Percentiles of a histogram."""
    buckets = rate(f"{name}_bucket", "le")
    return {f"p{p}": f"histogram_quantile({p / 100:g}, {buckets})" for p in (50, 90, 99)}


def mean(name: str) -> str:
    """The mean of a histogram's values."""
    return f"{rate(f'{name}_sum')} / {rate(f'{name}_count')}"


def gauge(name: str, how: str = "sum") -> str:
    """A gauge over the servers chosen."""
    return f"{how} (tailrace_{name}{ONE})"


STATS = (
    Panel("Engines up", {"": gauge("engine_up")}),
    Panel("Running", {"": gauge("num_requests_running")}),
    Panel("Waiting", {"": gauge("num_requests_waiting")}),
    Panel("KV cache, fullest", {"": gauge("kv_cache_usage_perc", "max")}, "percentunit"),
    Panel("Tokens a second", {"": rate("generation_tokens_total")}),
    Panel(
        "Server errors a second",
        {"": rate("request_outcomes_total", only='outcome="server_error"')},
    ),
)
"""Single numbers, at the top."""

ROWS: dict[str, tuple[Panel, ...]] = {
    "Traffic": (
        Panel(
            "Tokens a second",
            {
                "drawn": rate("generation_tokens_total"),
                "prompt": rate("prompt_tokens_total"),
                "prompt, computed": rate("prompt_tokens_computed_total"),
            },
        ),
        Panel(
            "Requests a second, by how they ended",
            {
                "{{outcome}}": rate("request_outcomes_total", "outcome"),
            },
        ),
        Panel(
            "Choices",
            {"running": gauge("num_requests_running"), "waiting": gauge("num_requests_waiting")},
        ),
        Panel("Prompt tokens of a request", percentiles("request_prompt_tokens")),
        Panel("Drawn tokens of a choice", percentiles("request_generation_tokens")),
        Panel(
            "HTTP replies a second, by status",
            {
                "{{status}}": f"sum by (status) (rate(http_requests_total{ONE}{TIME}))",
            },
        ),
    ),
    "Latency": (
        Panel("First token", percentiles("time_to_first_token_seconds"), "s"),
        Panel("Between a stream's chunks", percentiles("inter_token_latency_seconds"), "s"),
        Panel("Whole request", percentiles("e2e_request_latency_seconds"), "s"),
        Panel("Waiting for a row", percentiles("request_queue_time_seconds"), "s"),
        Panel(
            "Where time goes, mean of a choice",
            {part: mean(f"request_{part}_time_seconds") for part in ("queue", "prefill", "decode")},
            "s",
        ),
        Panel(
            "Choices by their end",
            {
                "{{finished_reason}}": rate("request_success_total", "finished_reason"),
            },
        ),
    ),
    "Engine": (
        Panel(
            "KV cache in use",
            {"{{instance}}": f"tailrace_kv_cache_usage_perc{ONE}"},
            "percentunit",
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            {"": f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}"},
            "percentunit",
        ),
        Panel(
            "Preemptions a second",
            {"": rate("num_preemptions_total")},
            words="Above 0 the cache is too small for what is let in.",
        ),
        Panel("Steps a second", {"": rate("engine_steps_total")}),
        Panel("Tokens a step, mean", {"": mean("iteration_tokens_total")}),
        Panel(
            "Memory of the server process",
            {"{{instance}}": f"process_resident_memory_bytes{ONE}"},
            "bytes",
        ),
    ),
    "Sampler and speculation": (
        Panel("Rows a second, by path", {"{{path}}": rate("sampler_rows_total", "path")}),
        Panel(
            "What should stay 0",
            {
                "unusable logits": rate("nan_rows_total"),
                "failed steps": rate("failed_steps_total"),
                "grammar failures": rate("grammar_errors_total"),
            },
        ),
        Panel(
            "Cost of grammars, seconds a second",
            {
                "masks": rate("grammar_mask_seconds_total"),
                "compiles": rate("grammar_compile_seconds_total"),
            },
        ),
        Panel(
            "Drafts accepted",
            {
                "": f"{rate('spec_decode_num_accepted_tokens_total')} / "
                f"{rate('spec_decode_num_draft_tokens_total')}"
            },
            "percentunit",
            "Only with --speculative-config.",
        ),
        Panel(
            "Drafts accepted, by position",
            {
                "{{position}}": rate("spec_decode_num_accepted_tokens_per_pos_total", "position")
                + f" / on () group_left () {rate('spec_decode_num_drafts_total')}"
            },
            "percentunit",
            "Only with --speculative-config.",
        ),
        Panel(
            "Tokens a verified step, mean",
            {
                "": f"1 + {rate('spec_decode_num_accepted_tokens_total')} / "
                f"{rate('spec_decode_num_drafts_total')}",
            },
            words="Only with --speculative-config.",
        ),
    ),
}
"""Graphs by the row that they stand in."""


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": "tailrace",
        "title": "tailrace",
        "tags": ["tailrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source(), _instances()]},
        "panels": [panel | {"id": number} for number, panel in enumerate(_panels(), start=1)],
    }


def queries() -> Iterator[str]:
    """Every query of the dashboard."""
    for panel in (*STATS, *(panel for row in ROWS.values() for panel in row)):
        yield from panel.queries.values()


def _panels() -> Iterator[dict[str, Any]]:
    width = 24 // len(STATS)
    for i, panel in enumerate(STATS):
        place = {"x": i * width, "y": 0, "w": width, "h": 4}
        yield _panel("stat", panel, place)
    top = 4
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        top += 1
        for i, panel in enumerate(row):
            x, y = i % _PER_ROW * _WIDTH, top + i // _PER_ROW * _HEIGHT
            yield _panel("timeseries", panel, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT})
        top += -(-len(row) // _PER_ROW) * _HEIGHT


def _panel(kind: str, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + i), "expr": query, "legendFormat": name or panel.title}
        for i, (name, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": kind,
        "title": panel.title,
        "description": panel.words,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [target | {"datasource": _SOURCE} for target in targets],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instances() -> dict[str, Any]:
    query = "label_values(tailrace_engine_up, instance)"
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "instances"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def text() -> str:
    """The file's contents."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
