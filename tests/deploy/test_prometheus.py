"""Prometheus itself: the alerts' unit tests, and the dashboard's queries at a real server."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.files import PROMETHEUS, document
from tests.deploy.queries import alerts, dashboard_queries
from tests.serving.process import Server, free_port, serve

TOLD = "needs {}, of the Debian package prometheus"
DRAFTING = ("--speculative-config", '{"method": "eagle", "num_speculative_tokens": 2}')


@pytest.mark.skipif(shutil.which("promtool") is None, reason=TOLD.format("promtool"))
@pytest.mark.parametrize(
    "words",
    [
        ("test", "rules", "alerts_test.yaml"),
        ("check", "rules", "alerts.yaml"),
        ("check", "config", "prometheus.yaml"),
    ],
    ids=" ".join,
)
def test_promtool(words: tuple[str, ...]) -> None:
    command = ["promtool", *words]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def prometheus(server: Server, folder: Path) -> Iterator[httpx.Client]:
    """Prometheus that reads a server every second; gives a client of it."""
    config = document(PROMETHEUS / "prometheus.yaml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "alerts.yaml")]
    target = server.url.removeprefix("http://")
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yaml").write_text(json.dumps(config))  # which is YAML too
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        process.kill()
        process.wait()


def values_of(client: httpx.Client, query: str) -> list[float]:
    """What a query finds now, numbers only."""
    try:
        reply = client.get("/api/v1/query", params={"query": query})
    except httpx.TransportError:
        return []
    if reply.status_code != 200:
        assert reply.status_code in (503,), reply.text
        return []
    values = [float(found["value"][1]) for found in reply.json()["data"]["result"]]
    return [value for value in values if value == value]  # a quantile of nothing is NaN


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason=TOLD.format("prometheus"))
def test_every_query_finds_values_at_a_real_server(tmp_path: Path) -> None:
    """Requests go on until each query has found a value; those that count failures find 0."""
    with serve(*DRAFTING) as server, prometheus(server, tmp_path) as client:
        left = dashboard_queries()
        deadline = time.monotonic() + 240
        while left:
            assert time.monotonic() < deadline, f"nothing found: {left}\n{tmp_path / 'log'}"
            for _ in server.client.completions.create(
                model="tailrace-demo", prompt="import os\n", max_tokens=8, stream=True
            ):
                pass
            left = [query for query in left if not values_of(client, query)]
        firing = client.get("/api/v1/alerts").json()["data"]["alerts"]
        assert [alert for alert in firing if alert["state"] == "firing"] == []
        rules = client.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert [rule["name"] for rule in rules] == [rule["alert"] for rule in alerts()]
        assert {rule["health"] for rule in rules} == {"ok"}
