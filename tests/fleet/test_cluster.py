"""`serve deploy` with the file of a fleet, on a Ray cluster of this machine.

Minutes long: five engines and three ingresses start, each of which imports much.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from demo import MODEL_FOLDER
from tests.deploy.files import DEPLOY, document
from tests.fleet.load import MODEL, loading, mixed, send_all
from tests.fleet.process import Fleet, until
from tests.serving.process import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray: the extra `ray` has it"),
]
BIN = Path(sys.executable).parent
ARGS = {
    **{"model": str(MODEL_FOLDER), "served_model_name": MODEL, "device": "cpu"},
    **{"num_threads": 1, "max_num_seqs": 8, "cpu_kvcache_space": 0.05, "shutdown_timeout": 60},
    **{"replicas": 1, "max_replicas": None, "ingresses": 1},
}
"""What the file says of a cluster with GPUs, said of this machine."""


class Cluster(Fleet):
    """A Ray cluster of one node, and the fleet that is deployed there."""

    def __init__(self, folder: Path) -> None:
        """Start the node, which ends with its process."""
        self.folder = folder
        self.port, dashboard_port = free_port(), free_port()
        self.dashboard = f"http://127.0.0.1:{dashboard_port}"
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environ = os.environ | auth | {"RAY_USAGE_STATS_ENABLED": "0"}
        ports = {
            **{"port": free_port(), "dashboard-port": dashboard_port},
            **{"ray-client-server-port": free_port(), "dashboard-agent-listen-port": free_port()},
        }
        flags = [f"--{name}={port}" for name, port in ports.items()]
        flags += ["--num-cpus=8", "--object-store-memory=268435456", f"--temp-dir={folder}"]
        command = [str(BIN / "ray"), "start", "--head", "--block", *flags]
        node = subprocess.Popen(command, env=self.environ, text=True)
        super().__init__(node, f"http://127.0.0.1:{self.port}")

    def is_up(self) -> bool:
        """Whether the node takes orders."""
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(self.dashboard)
            return True
        return False

    def deploy(self, *, deployments: tuple[dict[str, Any], ...] = (), **args: Any) -> None:
        """Deploy the file with other arguments."""
        content = document(DEPLOY / "fleet.yaml")
        (application,) = content["applications"]
        application["args"] |= ARGS | args
        application["deployments"] = list(deployments)
        self.deploy_content(content)

    def deploy_content(self, content: dict[str, Any]) -> None:
        content["http_options"]["port"] = self.port
        path = self.folder / "fleet.yaml"
        path.write_text(json.dumps(content))  # which is YAML too
        self.serve("deploy", str(path))

    def status(self) -> dict[str, Any]:
        """The state of the fleet; empty where there is none."""
        found: dict[str, Any] = yaml.safe_load(self.serve("status"))["applications"]
        return dict(found.get("tailrace", {}))

    def serve(self, *words: str) -> str:
        """Run a command of Ray Serve's, and give what it prints."""
        command = [str(BIN / "serve"), *words, "--address", self.dashboard]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def runs(self, num_replicas: int) -> bool:
        """Whether what was deployed last runs, with so many replicas."""
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            return self.status()["status"] == "RUNNING" and self.num_rows == 8 * num_replicas
        return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Short, since paths of sockets are; what Ray writes while it ends may be left.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            until(made.is_up, 120)
            made.deploy()
            until(lambda: made.runs(1))
            yield made
        finally:
            made.process.terminate()
            try:
                made.process.wait(60)
            finally:
                made.process.kill()


def test_mixed_requests(cluster: Cluster) -> None:
    outcomes = asyncio.run(send_all(cluster.url, mixed(48), concurrency=8))
    assert [each for each in outcomes if (each.status, each.errors) != (200, ())] == []


def test_any_host_is_answered(cluster: Cluster) -> None:
    """The file listens on every address, so names of the machine are not known."""
    headers = {"Host": "fleet.example"}
    assert httpx.get(cluster.url + "/v1/models", headers=headers).status_code == 200


def test_a_mistake_in_the_file_is_told_and_the_fleet_goes_on(cluster: Cluster) -> None:
    cluster.deploy(max_wating_requests=1)
    until(lambda: cluster.status()["status"] == "DEPLOY_FAILED", 120)
    last = cluster.status()["message"].strip().splitlines()[-1]
    assert last.endswith("max_wating_requests is no setting; did you mean max_waiting_requests?")
    assert cluster.num_rows == 8
    cluster.deploy()
    until(lambda: cluster.runs(1))


def test_another_restart_restarts_replicas_and_loses_nothing(cluster: Cluster) -> None:
    old = set(cluster.engines)
    with loading(cluster.url) as found:
        cluster.deploy(restart=2)
        until(lambda: len(now := set(cluster.engines)) == 1 and not now & old)
        until(lambda: cluster.runs(1))
    print(f"{len(found)} requests during a rolling restart")
    assert len(found) >= 24
    assert [e for e in found if e.status != 200 or e.errors or not e.ended] == []


def test_more_replicas_need_no_restart(cluster: Cluster) -> None:
    old = set(cluster.engines)
    cluster.deploy(restart=2, deployments=({"name": "EngineReplica", "num_replicas": 2},))
    until(lambda: cluster.runs(2))
    assert old < set(cluster.engines)


def test_the_fleet_leaves_and_lets_open_requests_end(cluster: Cluster) -> None:
    body = {"model": MODEL, "prompt": "def f(", "max_tokens": 1000, "ignore_eos": True}
    with (
        httpx.Client(base_url=cluster.url, timeout=300) as client,
        client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        cluster.deploy_content(document(DEPLOY / "fleet.yaml") | {"applications": []})
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert not any('"error"' in event for event in events)
    until(lambda: cluster.status() == {}, 60)
    assert httpx.get(cluster.url + "/ready").status_code == 404
