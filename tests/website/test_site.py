"""mkdocs builds the site without a warning, and nothing in it is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = (
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//",
    r"<link[^>]+rel=[\"']?(?:stylesheet|preconnect|preload|icon)[^>]+href=[\"']?(?:https?:)?//",
    r"(?:url\(|@import )[\"']?(?:https?:)?//",
)
"""What a browser would fetch from another host."""


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    assert (tmp_path / "measured" / "tails.svg").is_file()
    for path in [*pages, *tmp_path.rglob("*.css"), *tmp_path.rglob("*.svg")]:
        for pattern in LOADED:
            assert not re.search(pattern, path.read_text()), f"{path}: {pattern}"
