"""`tailrace verify --quick` as a newcomer runs it, timed by the processor time it takes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

LIMIT_S = 120.0
"""Two minutes of one core. It takes half a minute, of which a part is imports."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_quick_verify_takes_less_than_two_minutes() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "verify", "--quick"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{took:.1f} s of processor time")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    assert took < LIMIT_S
