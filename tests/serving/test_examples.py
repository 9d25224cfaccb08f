"""The examples of the README, of tutorials and of `examples/` run as they are written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.process import Server, serve

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(
    r"^```(python|sh)\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL
)
TUTORIALS = [
    page
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    if "```python" in page.read_text()
]
URL = "http://127.0.0.1:8000"
SPECULATION = '{"method": "eagle", "num_speculative_tokens": 4, "draft_sample_method": "gumbel"}'
"""Of the server that all examples ask, as one of them is about it."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--speculative-config", SPECULATION) as server:
        yield server


def printed(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_has_examples() -> None:
    assert [kind for kind, _ in BLOCKS].count("python") == 3
    assert [kind for kind, _ in BLOCKS].count("sh") == 2
    assert all(URL in code for _, code in BLOCKS)


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "python"])
def test_python_of_the_readme(code: str, server: Server, tmp_path: Path) -> None:
    output = printed([sys.executable, "-c", code.replace(URL, server.url)], tmp_path)
    assert len(output.split()) > 3
    if "tools" in code:
        assert output.splitlines()[-1].endswith("The result is 427.")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "sh"])
def test_curl_of_the_readme(code: str, server: Server, tmp_path: Path) -> None:
    output = printed(["bash", "-c", code.replace(URL, server.url)], tmp_path)
    reply = json.loads(output)
    assert "usage" in reply
    assert "error" not in reply


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_from_top_to_bottom(page: Path, server: Server, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    code = "\n".join(blocks)
    assert URL in code
    output = printed([sys.executable, "-c", code.replace(URL, server.url)], tmp_path)
    assert len(output.splitlines()) >= 2


def test_the_engine_without_http(tmp_path: Path) -> None:
    """Training has a test of its own, in `tests/serving/test_rollouts.py`."""
    prompt, path = "import os\n\n\ndef walk(", ROOT / "examples" / "generate.py"
    output = printed([sys.executable, str(path), prompt], tmp_path)
    assert output.startswith(prompt)
    assert len(output) > len(prompt) + 10
