"""A schema fuzzer and one of our own against running servers: nothing they send ends in a 5xx."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.fuzzer import STEERING, VALID, changed_bodies
from tests.serving.process import Server, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,negative_data_rejection"
)
TRAINERS = ("--enable-weight-updates", "--enable-sleep-mode", "--enable-lora")
ROUTES_FOR_TRAINERS = (
    "^/(pause|resume|is_paused|abort_request|reset_prefix|flush|continue_gen|get_w|model_info"
    "|(init|shutdown|start|start_draft|update|finish|begin|end|destroy)_weight|weight|sleep|wake_up"
    "|is_sleeping|release_m|resume_m|(v1/)?(un)?load_lora)"
)
NUM_BODIES = 150
"""Of our own, for each route."""


def run_schemathesis(server: Server, *options: str) -> None:
    fuzzer = Path(sys.executable).with_name("schemathesis")
    command = [str(fuzzer), "run", f"{server.url}/openapi.json", "--checks", CHECKS]
    command += ["--seed", "1", "--no-color", "--suppress-health-check", "all"]
    command += ["--request-timeout", "120", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert server.get("/health").status_code == 200
    assert done.returncode == 0, done.stdout[-8000:]


def test_schemathesis_finds_nothing() -> None:
    """A short context, or most of the time goes to choices that end at its length."""
    with serve("--max-model-len", "256") as server:
        run_schemathesis(server, "--max-examples", "150")


def test_schemathesis_finds_nothing_as_a_trainer() -> None:
    """Apart from other routes, which are a 503 while the server pauses or sleeps."""
    with serve(*TRAINERS) as server:
        only = ("--include-path-regex", ROUTES_FOR_TRAINERS)
        run_schemathesis(server, "--max-examples", "50", *only)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    rerank = ("--rerank-template", "{{ query }} {{ document }}")
    with serve("--max-model-len", "256", *rerank, *TRAINERS) as running:
        yield running


@pytest.mark.parametrize("path", VALID)
def test_changed_bodies_are_answered(server: Server, path: str) -> None:
    send_changed(server, path, VALID[path])


@pytest.mark.parametrize("path", STEERING)
def test_changed_bodies_of_trainers_are_answered(server: Server, path: str) -> None:
    send_changed(server, path, STEERING[path])


def send_changed(server: Server, path: str, valid: dict[str, Any]) -> None:
    """Send a valid body, and changed ones: each gets a reply, of which none is a 5xx."""
    headers = {"content-type": "application/json"}
    statuses: dict[int, int] = {}
    with httpx.Client(timeout=120, headers=headers) as client:
        if path in VALID:
            assert client.post(server.url + path, json=valid).status_code == 200
        for number, raw in enumerate(changed_bodies(valid, seed=1, count=NUM_BODIES)):
            reply = client.post(server.url + path, content=raw)
            statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
            assert reply.status_code < 500, (number, raw[:2000], reply.text[:2000])
            if reply.status_code >= 400:
                assert isinstance(reply.json(), dict)
        assert client.get(f"{server.url}/health").status_code == 200
    print(f"\n{path}: {statuses}")
