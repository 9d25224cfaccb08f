"""What a query asks for: names of series, matchers, and labels that it sums by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from deploy.dashboard import queries as panel_queries
from tests.deploy.files import PROMETHEUS, document

SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""


@dataclass(frozen=True)
class Selected:
    """One selector of a query.

    Attributes:
        matchers: values that labels must have, of matchers with `=`.
        labels: every label that the query names for it.
    """

    name: str
    matchers: dict[str, str]
    labels: frozenset[str]


def alerts() -> list[dict[str, Any]]:
    """The rules as they are written."""
    groups = document(PROMETHEUS / "alerts.yaml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """Every query of the dashboard, as Grafana sends it for all servers."""
    found = (query.replace("$__rate_interval", "1m") for query in panel_queries())
    return list(dict.fromkeys(query.replace("$instance", ".*") for query in found))


def selected(query: str) -> list[Selected]:
    """The selectors of a query; ValueError where it is no PromQL."""
    return list(_walk(promql_parser.parse(query), frozenset()))


def _walk(node: Any, labels: frozenset[str]) -> Iterator[Selected]:
    match node:
        case promql_parser.VectorSelector():
            found = node.matchers.matchers
            equal = {m.name: m.value for m in found if m.op == promql_parser.MatchOp.Equal}
            named = labels | {matcher.name for matcher in found}
            yield Selected(node.name or "", equal, named)
        case promql_parser.MatrixSelector():
            yield from _walk(node.vector_selector, labels)
        case promql_parser.AggregateExpr():
            by = frozenset(node.modifier.labels if node.modifier else ())
            yield from _walk(node.expr, labels | by)
        case promql_parser.BinaryExpr():
            yield from _walk(node.lhs, labels)
            yield from _walk(node.rhs, labels)
        case promql_parser.Call():
            for argument in node.args:
                yield from _walk(argument, labels)
        case promql_parser.ParenExpr():
            yield from _walk(node.expr, labels)
        case promql_parser.NumberLiteral():
            pass
        case _:
            raise AssertionError(f"no rule for {type(node).__name__}: add one here")
