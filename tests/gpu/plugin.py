"""Takes a share of the tests of a process, and tells what comes of each at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SHARE, RESULTS = "GPU_TESTS_SHARE", "GPU_TESTS_RESULTS"
"""Variables: which of how many shares, as 0/4; a file that gets a line of JSON a test."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a share of the tests, one after another, so that fixtures of a module are made once."""
    share, count = map(int, os.environ.get(SHARE, "0/1").split("/"))
    first, end = (len(items) * each // count for each in (share, share + 1))
    left_out = items[:first] + items[end:]
    items[:] = items[first:end]
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell a test's outcome, and of its setup and its end what is not well."""
    if report.when != "call" and report.passed:
        return
    row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        row["why"] = str(report.longrepr if crash is None else crash.message)[-2000:]
    with Path(os.environ[RESULTS]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
