"""A schema fuzzer against the running server: nothing it sends may end in a 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.process import serve

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,negative_data_rejection"
)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_schemathesis_finds_nothing() -> None:
    fuzzer = Path(sys.executable).with_name("schemathesis")
    with serve() as server:
        command = [str(fuzzer), "run", f"{server.url}/openapi.json", "--checks", CHECKS]
        options = ["--max-examples", "150", "--seed", "1", "--no-color"]
        suppressed = ["--suppress-health-check", "all", "--request-timeout", "120"]
        done = subprocess.run(
            [*command, *options, *suppressed], capture_output=True, text=True, check=False
        )
        assert server.get("/health").status_code == 200
    assert done.returncode == 0, done.stdout[-8000:]
