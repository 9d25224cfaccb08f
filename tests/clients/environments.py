"""Environments of client packages, each of its own: no package bends another's requirements.

They are kept in the temporary folder, since installing takes a minute each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

CACHE = Path(tempfile.gettempdir()) / "tailrace-tests-clients"
INSTALL_S = 900


def python_with(*packages: str, shares_libraries: bool = False) -> Path:
    """The interpreter of an environment with packages of the Python index.

    Args:
        shares_libraries: what this environment has counts as installed there, since it includes
            gigabytes of torch. The project itself, a link into this checkout, is not seen.
    """

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        if shares_libraries:
            (own,) = folder.glob("lib/python*/site-packages")
            (own / "libraries.pth").write_text("\n".join(site.getsitepackages()))
        # Compiling all modules of a package takes longer than its calls, which import a part.
        pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "install"]
        _run([*pip, "--quiet", "--no-compile", *packages], folder)

    shared = _shared() if shares_libraries else ()
    return _made("python", packages, install, shared) / "bin" / "python"


def node_with(*packages: str) -> Path:
    """A folder whose programs can import packages of npm."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--no-audit", "--no-fund", *packages], folder)

    return _made("node", packages, install)


def source_of(package: str) -> Path:
    """The folder of a package's source as the Python index has it, for what no wheel holds."""

    def install(folder: Path) -> None:
        name = package.split("==")[0]
        pip: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _run([*pip, "--no-binary", name, "--dest", folder, package], folder)
        (archive,) = folder.glob("*.tar.gz")
        shutil.unpack_archive(archive, folder / "source", filter="data")

    (source,) = (_made("source", (package,), install) / "source").iterdir()
    return source


def _shared() -> tuple[str, ...]:
    """The packages of this environment by name and version: what counted as installed in another
    must still be there."""
    folders = map(Path, site.getsitepackages())
    return tuple(sorted(each.name for folder in folders for each in folder.glob("*.dist-info")))


def _made(
    kind: str,
    packages: tuple[str, ...],
    install: Callable[[Path], None],
    shared: tuple[str, ...] = (),
) -> Path:
    """The folder of an environment, made by `install` unless it is there."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(repr((version, packages, shared)).encode()).hexdigest()[:12]
    folder = CACHE / f"{kind}-{key}"
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        install(folder)
        done.touch()
    return folder


def _run(command: list[str | Path], folder: Path) -> None:
    """Run an installer; the test is skipped where it fails, as it does without a network."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, env=_environment()
    )
    if done.returncode:
        line = (done.stderr or done.stdout).strip().splitlines()[-1]
        pytest.skip(f"cannot be installed here: {line}")


def _environment() -> dict[str, str]:
    """Without what would let an environment's Python see this project."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
