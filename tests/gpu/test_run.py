"""The order of GPU tests, and runs of files with a passing, a failing and a hanging test."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.cards import Settings
from tests.gpu import run as gpu
from tests.gpu.run import FIRST, ROOT, Job, Outcomes, digest, gpu_files, jobs_of, order, run_all

FILE = """
import pytest, time
pytestmark = pytest.mark.gpu
def test_a(): pass
def test_b(): assert 1 == 2, "they differ"
def test_c(): pass
def test_d(): pass
"""
HANGS = """
import pytest, time
pytestmark = pytest.mark.gpu
def test_done(): pass
def test_hangs(): time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files with tests that need no GPU."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (tmp_path / "test_file.py").write_text(FILE)
    (tmp_path / "test_other.py").write_text(HANGS)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    return tmp_path


def test_what_failed_is_named_and_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, name = Outcomes(), str(folder / "test_file.py")
    jobs = [Job(name, f"{share}/2", False) for share in range(2)]
    run_all(jobs, Settings([""], time.monotonic() + 120.0, {}), 2, outcomes)
    assert outcomes.unfinished == []
    (row,) = outcomes.summary("one").values()
    assert (row["passed"], row["skipped"], row["gpu"]) == (3, 0, "one")
    ((test, why),) = row["failed"].items()
    assert test.endswith("test_file.py::test_b")
    assert "they differ" in why
    assert "test_b FAILED" in capsys.readouterr().out


def test_a_process_that_begins_no_test_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sitecustomize.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    outcomes, name = Outcomes(), str(folder / "test_file.py")
    run_all([Job(name, "0/1", False)], Settings([""], time.monotonic() + 60.0, {}), 1, outcomes)
    assert outcomes.unfinished == [f"{name}: ended with status 1"]


def test_what_the_time_ends_is_named(folder: Path) -> None:
    outcomes, name = Outcomes(), str(folder / "test_other.py")
    settings = Settings([""], time.monotonic() + 15.0, {}, interrupts=True)
    later = str(folder / "test_file.py")
    run_all([Job(name, "0/1", False), Job(later, "0/1", False)], settings, 1, outcomes)
    assert [row["test"].split("::")[1] for row in outcomes.rows[name]][:1] == ["test_done"]
    assert outcomes.unfinished == [f"{name}: ended after 15 s", f"{later}: not run"]
    assert outcomes.summary("one") == {}


def test_what_is_new_or_changed_comes_first_then_what_failed() -> None:
    files = gpu_files(["tests/engine", "tests/sampling"])
    assert len(files) > 40
    assert files == sorted(set(files))
    by_place = sorted(files, key=lambda file: order(file, {}))
    wanted = [file for place in FIRST for file in files if file.startswith(place)]
    assert by_place[: len(wanted)] == wanted
    row = {"sources": gpu.sources(), "failed": {}}
    known = {file: row | {"file": digest([ROOT / file])} for file in files}
    known[files[9]] |= {"failed": {"test": "why"}}
    known[files[7]] |= {"file": "another"}
    known[files[5]] |= {"sources": "others"}
    by_need = sorted(files, key=lambda file: order(file, known))
    assert by_need[:3] == [files[7], files[9], files[5]]


@pytest.mark.parametrize("place", FIRST)
def test_what_is_wanted_first_has_tests_for_a_gpu(place: str) -> None:
    assert gpu_files([place])


def test_the_sampler_runs_both_ways_where_flashinfer_is() -> None:
    both = jobs_of("tests/sampling/test_rows.py", has_flashinfer=True)
    assert [job.flashinfer for job in both] == [False, True]
    assert len(list(jobs_of("tests/sampling/test_rows.py", has_flashinfer=False))) == 1
    shares = jobs_of("tests/engine/models/families/test_families_cuda.py", has_flashinfer=True)
    assert [job.share for job in shares] == ["0/4", "1/4", "2/4", "3/4"]


def test_results_are_files_that_are_there() -> None:
    if gpu.STORED.exists():
        assert all((ROOT / file).exists() for file in json.loads(gpu.STORED.read_text()))
