"""The dashboard and the alerts ask for series that the server has, with labels that they have."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from deploy.dashboard import PATH, dashboard, text
from engine.stats import DraftStats
from tests.deploy.files import PROMETHEUS, document
from tests.deploy.queries import SCRAPED, Selected, alerts, dashboard_queries, selected
from tests.fakes import FakeEngine
from tests.server.conftest import in_process

Series = list[tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def series() -> Series:
    """Names and labels of everything a server shows that has answered and drafted."""
    shown = asyncio.run(_exposition())
    families = text_string_to_metric_families(shown)
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


async def _exposition() -> str:
    engine = FakeEngine()
    async with in_process(engine) as site:
        await site.complete(prompt="x", max_tokens=2)
        await site.stream(prompt="x", max_tokens=2)
        assert engine.stats is not None
        drafts = DraftStats(num_drafts=1, num_draft_tokens=2, accepted_at=(1, 0))
        rows = {"torch": 1}
        engine.stats = structs.replace(engine.stats, drafts=drafts, sampler_rows=rows)
        return (await site.client.get("/metrics")).text


def is_there(wanted: Selected, series: Series) -> bool:
    return any(
        name == wanted.name
        and wanted.labels <= labels.keys() | SCRAPED
        and wanted.matchers.items() <= (labels | dict.fromkeys(SCRAPED)).items()
        for name, labels in series
    )


@pytest.mark.parametrize("query", dashboard_queries())
def test_every_query_of_the_dashboard_finds_its_series(query: str, series: Series) -> None:
    found = selected(query)
    assert found
    assert [each for each in found if not is_there(each, series)] == []


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_every_alert_finds_its_series(rule: dict[str, str], series: Series) -> None:
    own = [each for each in selected(rule["expr"]) if each.name != "up"]  # up is Prometheus' own
    assert own or rule["alert"] == "TailraceUnreachable"
    assert [each for each in own if not is_there(each, series)] == []


@pytest.mark.parametrize(
    "query",
    [
        "tailrace_num_requests_sitting",
        'rate(tailrace_request_outcomes_total{outcome="luck"}[1m])',
        "sum by (colour) (rate(tailrace_nan_rows_total[1m]))",
    ],
)
def test_a_series_that_is_not_there_is_noticed(query: str, series: Series) -> None:
    assert not is_there(selected(query)[0], series)


def test_the_dashboard_is_what_its_module_writes() -> None:
    assert PATH.read_text() == text(), "python -m deploy.dashboard"
    assert json.loads(text()) == dashboard()


def test_no_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = document(PROMETHEUS / "alerts_test.yaml")["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    fires = {check["alertname"] for check in checks if check.get("exp_alerts")}
    keeps_still = {check["alertname"] for check in checks if not check.get("exp_alerts")}
    assert fires == keeps_still == {rule["alert"] for rule in alerts()}
