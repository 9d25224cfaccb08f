"""The wheel has all that the server needs: built, installed apart, and served from elsewhere."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.serving.process import serve

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("server", "engine", "sampling", "demo")
FILES = ("pyproject.toml", "README.md", "LICENSE")
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """The wheel of a copy of the tree: building writes beside what it reads."""
    source = folder / "source"
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, source, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """An environment with the wheel and the libraries of this one; the folder of its programs.

    The libraries come in by a path of their own. The project as it is installed here, a link into
    this checkout, does not: such links are followed in an environment's own folder only.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    where = "import site; print(site.getsitepackages()[0])"
    own = Path(run(python, "-c", where, folder=folder).strip())
    (own / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    options = ("--no-deps", "--no-index", "--ignore-installed")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, folder=folder)
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_serves_from_another_folder(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    assert wheel.name.startswith(f"tailrace-{VERSION}-")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {*PACKAGES}
    programs = install(wheel, tmp_path / "environment")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for package in PACKAGES:
        where = f"import {package}; print(*{package}.__path__)"
        found = run(programs / "python", "-c", where, folder=elsewhere)
        assert Path(found.strip()).is_relative_to(tmp_path / "environment")
    started: list[list[str | Path]] = [
        [programs / "tailrace"],
        [programs / "python", "-m", "server.cli"],
    ]
    for program in started:
        with serve(program=program, folder=elsewhere) as server:
            reply = server.client.completions.create(
                model="tailrace-demo", prompt="def ", max_tokens=4
            )
            assert reply.usage is not None
            assert reply.usage.completion_tokens == 4
            assert server.get("/version").json() == {"version": VERSION}
            assert "page/main.js" in server.get("/").text
            assert server.get("/page/views/write/view.js").status_code == 200
