"""`tailrace conformance` of a real server of ours passes; synthetic acceptance does not."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from server.cli import main
from server.conformance.run import GROUPS, run_check
from server.conformance.subject import Subject
from server.remote import Remote
from tests.serving.process import serve

FEW_REQUESTS = ("replies", "streams", "logprobs", "errors")


def test_all_but_the_draws() -> None:
    with serve() as server:
        subject = Subject(Remote(server.url, key=None), "tailrace-demo")
        results = [
            run_check(group, check, subject) for group in FEW_REQUESTS for check in GROUPS[group]
        ]
    assert [result for result in results if result.status != "pass"] == []


@pytest.mark.slow
def test_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "report.html"
    with serve() as server:
        status = main(["conformance", "--base-url", server.url, "--json", "--html", str(html)])
    report = orjson.loads(capsys.readouterr().out)
    assert status == 0, report
    assert {check["status"] for check in report["checks"]} == {"pass"}
    assert "tailrace-demo" in html.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "passes"), [("standard", True), ("synthetic", False)])
def test_speculation(method: str, passes: bool) -> None:
    """Drafts that are accepted at a rate of their own change what later tokens are."""
    config = {"method": "eagle", "num_speculative_tokens": 3, "rejection_sample_method": method}
    if method == "synthetic":
        config["synthetic_acceptance_length"] = 3.5
    (later,) = [check for check in GROUPS["draws"] if check.__name__ == "later_tokens_follow_it"]
    with serve("--speculative-config", json.dumps(config)) as server:
        result = run_check("draws", later, Subject(Remote(server.url, key=None), "tailrace-demo"))
    assert result.status == ("pass" if passes else "fail"), result
