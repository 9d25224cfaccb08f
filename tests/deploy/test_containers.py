"""Compose files and the Kubernetes example: valid, and true to the server and its image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from server.app import create_app
from server.command.settings import Settings, flag_of, variable_of
from server.config import ServerConfig
from tests.deploy.files import DEPLOY, PROMETHEUS, document, documents
from tests.fakes import FakeEngine, byte_tokenizer
from tests.house import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
KUBERNETES = documents(DEPLOY / "kubernetes.yaml")
COMPOSE = document(DEPLOY / "compose.yaml")
CUDA = document(DEPLOY / "compose.cuda.yaml")
VARIABLES = {variable_of(name) for name in Settings.model_fields}
GRACE_S = Settings.model_fields["shutdown_timeout"].default


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def pod() -> dict[str, Any]:
    (deployment,) = (each for each in KUBERNETES if each["kind"] == "Deployment")
    return dict(deployment["spec"]["template"]["spec"])


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_compose_files_are_valid(name: str) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("resource", KUBERNETES, ids=lambda resource: resource["kind"])
def test_kubernetes_resources_are_valid(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, "1.37", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource | {"unknown": 1}, "1.37", strict=True)


def test_images_are_those_of_the_dockerfile() -> None:
    for compose in (COMPOSE, CUDA):
        target = compose["services"]["tailrace"]["build"]["target"]
        assert f" AS {target}\n" in DOCKERFILE
    assert {str(port) for port in ports()} == set(re.findall(r"EXPOSE (\d+)", DOCKERFILE))


def test_images_can_send_traces() -> None:
    installs = re.findall(r"make install .*", DOCKERFILE)
    assert len(installs) == 4
    assert all("otel" in install for install in installs)


def ports() -> set[int]:
    """Those on which the server is asked, in every file."""
    (published,) = COMPOSE["services"]["tailrace"]["ports"]
    scrape = document(PROMETHEUS / "prometheus.yaml")
    ((target,),) = (each["targets"] for each in scrape["scrape_configs"][0]["static_configs"])
    inside = {each["containerPort"] for each in container()["ports"]}
    return {int(published.rpartition(":")[2]), int(target.removeprefix("tailrace:")), *inside}


def test_settings_are_those_of_the_server() -> None:
    reported = set(COMPOSE["services"]["tailrace"]["environment"])
    reported |= {each["name"] for each in container()["env"]}
    assert {name for name in reported if name.startswith("TAILRACE_")} <= VARIABLES
    flags = {word for word in container()["args"] if word.startswith("--")}
    assert flags <= {flag_of(name) for name in Settings.model_fields}


def test_kubernetes_sets_no_variables_of_the_server() -> None:
    """It names one after each service, such as TAILRACE_PORT, unless it is reported not to."""
    services = [each["metadata"]["name"] for each in KUBERNETES if each["kind"] == "Service"]
    assert services == ["tailrace"], "whose variables begin like the server's own"
    assert pod()["enableServiceLinks"] is False


def test_what_compose_mounts_is_there() -> None:
    for service in COMPOSE["services"].values():
        sources = [volume.split(":")[0] for volume in service["volumes"]]
        for source in sources:
            assert (DEPLOY / source).is_dir() if source[0] == "." else source in COMPOSE["volumes"]
    assert set(COMPOSE["volumes"]) >= {"models", "metrics", "boards"}
    (provider,) = document(DEPLOY / "grafana/provisioning/dashboards/tailrace.yaml")["providers"]
    mounts = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts


async def test_probes_ask_for_routes_that_need_no_key() -> None:
    probes = [
        container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    ]
    assert {probe["port"] for probe in probes} == {container()["ports"][0]["name"]}
    app = create_app(FakeEngine(), byte_tokenizer(), ServerConfig(model_names=("m",)))
    routes = {getattr(route, "path", "") for route in app.routes}
    assert [probe["path"] for probe in probes] == ["/health", "/health", "/ready"]
    assert {"/health", "/ready", "/metrics"} <= routes
    app.state.context.close()


def test_ends_leave_time_to_drain() -> None:
    args = container()["args"]
    drain = float(args[args.index("--shutdown-timeout") + 1])
    pause = float(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] > drain + pause
    period = COMPOSE["services"]["tailrace"]["stop_grace_period"]
    assert float(period.removesuffix("s")) > GRACE_S


def test_the_repository_s_paths_are_named_as_they_are() -> None:
    for path in DEPLOY.rglob("*.yaml"):
        named = re.findall(r"\bdeploy/[\w./]+\.yaml", path.read_text())
        assert [name for name in named if not (ROOT / name).is_file()] == []
    assert Path(DEPLOY / COMPOSE["services"]["tailrace"]["build"]["context"]).resolve() == ROOT
