"""The program finds our packages, whatever folders `PYTHONPATH` names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALLED = f"import sys; sys.path.append({str(ROOT)!r}); "
"""How a program finds the entry point of an installed wheel: last."""
EDITABLE = f"""
import importlib.machinery as machinery, sys

class Finder:
    def find_spec(name, path=None, target=None):
        return machinery.PathFinder.find_spec(name, [{str(ROOT)!r}]) if path is None else None

sys.meta_path = [*(each for each in sys.meta_path if "Editable" not in str(each)), Finder]
"""
"""How it finds that of an editable install: by a finder that is asked after all folders."""


def run(program: str, *path: Path | str, install: str = INSTALLED, cwd: Path = ROOT) -> str:
    """What a program prints that finds the entry point as an installed one would."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", install + program],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def test_folders_with_packages_of_our_names_come_last(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "server").mkdir(parents=True)
    (tmp_path / "theirs" / "server" / "__init__.py").write_text("raise SystemExit('not ours')")
    (tmp_path / "theirs" / "engine.py").touch()
    (tmp_path / "theirs" / "plugin.py").write_text("WORD = 'a plugin'")
    (tmp_path / "other").mkdir()
    path = (tmp_path / "theirs", tmp_path / "other")
    found = run(
        "import tailrace_command; tailrace_command.set_aside(); import os, plugin, server.cli; "
        "print(plugin.WORD, os.environ['PYTHONPATH'])",
        *path,
    )
    assert found == f"a plugin {tmp_path / 'other'}\n"
    assert "not ours" in run("import server", *path)


@pytest.mark.parametrize("install", [INSTALLED, EDITABLE], ids=["wheel", "editable"])
def test_the_program_itself(tmp_path: Path, install: str) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").write_text("raise SystemExit('not ours')")
    program = "sys.argv[1:] = ['--version']; import tailrace_command; tailrace_command.run()"
    assert run(program, tmp_path, install=install).strip().count(".") >= 2
    assert "not ours" in run("import server", tmp_path, install=install)


def test_an_empty_entry_is_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("raise SystemExit('not ours')")
    program = (
        "import tailrace_command; tailrace_command.set_aside(); "
        "import os, server.cli; print(os.environ['PYTHONPATH'])"
    )
    path = ("", tmp_path / "none")
    assert run(program, *path, cwd=tmp_path) == f"{tmp_path / 'none'}\n"
    assert "not ours" in run("import server", *path, cwd=tmp_path)


def test_our_own_folder_stays(tmp_path: Path) -> None:
    program = (
        "import tailrace_command, os; tailrace_command.set_aside(); print(os.environ['PYTHONPATH'])"
    )
    assert run(program, ROOT, tmp_path).strip() == f"{ROOT}{os.pathsep}{tmp_path}"
