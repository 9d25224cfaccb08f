"""Workers leave kernels where the process that asked looks for them, and end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sampling.device import compile_workers
from sampling.device import compiling as compiling_module
from sampling.device.compile_workers import Job, Workers, begin_workers, end_workers, is_cache_empty
from sampling.device.compiling import compiling_together
from sampling.device.triton_support import HAS_TRITON, INTERPRETED, triton
from tests.no_gpu.compiler import NoGPU
from tests.sampling.device.one_kernel import one_kernel

pytestmark = pytest.mark.skipif(
    not HAS_TRITON or INTERPRETED or torch.cuda.is_available(),
    reason="needs Triton's compiler, and no GPU",
)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Workers]:
    """Two workers over an empty cache; no kernel is loaded."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling_module, "_load", lambda kernel: None)
    monkeypatch.setattr(compiling_module, "_make_launchers", lambda *kernels: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    triton.runtime.driver.set_active(NoGPU())
    yield begin_workers("sampling.device.triton_support")
    end_workers()
    triton.runtime.driver.set_active(None)


def test_the_process_that_asked_finds_what_workers_compiled(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Triton would know the function by another key here than there."""
    one_kernel.device_caches.clear()
    monkeypatch.setattr(one_kernel, "hash", "0" * 64)
    asked: list[Job] = []
    found: list[bool] = []
    compile_there = workers.compile

    def ask(job: Job) -> bool:
        asked.append(job)
        return compile_there(job)

    monkeypatch.setattr(workers, "compile", ask)
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda **what: found.append(what["cache_hit"])
    )
    out = torch.zeros(16, dtype=torch.int32)
    with compiling_together():
        for count in (4, 2, 4):
            one_kernel[(1,)](out, count=count)
    assert sorted(job.constants[(1,)] for job in asked) == [2, 4]
    assert found == [True, True]
    one_kernel.device_caches.clear()


def test_a_job_that_fails_leaves_the_worker_to_the_next(workers: Workers) -> None:
    three_lanes = Job(  # no power of two
        module=one_kernel.__module__,
        name="one_kernel",
        key="1" * 64,
        signature={"out_ptr": "*i32", "count": "constexpr"},
        constants={(1,): 3},
        attributes={},
        options={},
        target=("cuda", 90, 32),
    )
    for _ in range(3):
        assert not workers.compile(three_lanes)
    assert workers.compile(three_lanes._replace(constants={(1,): 4}))


def test_workers_end_with_whoever_began_them(tmp_path: Path) -> None:
    program = (
        "import os; from sampling.device import compile_workers\n"
        "workers = compile_workers.Workers('sampling.device.triton_support', 2)\n"
        "print(workers._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(compile_workers.__file__).parents[1]
    ended = subprocess.run(
        (sys.executable, "-c", program), cwd=root, stdout=subprocess.PIPE, timeout=60
    )
    # The pipe is theirs too: it ends when the last of them has.
    deadline = time.monotonic() + 30
    while _runs(int(ended.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_cache_with_few_kernels_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert is_cache_empty()
    for index in range(compile_workers.FEW_COMPILED):
        assert is_cache_empty()
        (tmp_path / "cache" / str(index)).mkdir(parents=True)
    assert not is_cache_empty()
