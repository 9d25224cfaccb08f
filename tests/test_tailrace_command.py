"""The program finds our packages, whatever folders `PYTHONPATH` names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(program: str, *path: Path | str) -> str:
    """What a program prints that finds the entry point as an installed one would, last."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    code = f"import sys; sys.path.append({str(ROOT)!r}); {program}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
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
    path = (tmp_path / "theirs", tmp_path / "other", "")
    found = run(
        "import tailrace_command; tailrace_command.set_aside(); import os, plugin, server.cli; "
        "print(plugin.WORD, os.environ['PYTHONPATH'])",
        *path,
    )
    assert found == f"a plugin {tmp_path / 'other'}\n"
    assert "not ours" in run("import server", *path)


def test_the_program_itself(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("raise SystemExit('not ours')")
    program = "sys.argv[1:] = ['--version']; import tailrace_command; tailrace_command.run()"
    assert run(program, tmp_path).strip().count(".") >= 2


def test_our_own_folder_stays(tmp_path: Path) -> None:
    program = (
        "import tailrace_command, os; tailrace_command.set_aside(); print(os.environ['PYTHONPATH'])"
    )
    assert run(program, ROOT, tmp_path).strip() == f"{ROOT}{os.pathsep}{tmp_path}"
