"""Programs of clients that are run against a server."""

from __future__ import annotations

import subprocess
from pathlib import Path

MODEL = "tailrace-demo"


def output_of(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
