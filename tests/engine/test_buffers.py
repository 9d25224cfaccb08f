"""Staged writes and the CPU's stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.buffers import (
    HostStream,
    InlineLauncher,
    StagedWrites,
    is_device_lost,
)


def test_staged_writes_land_together_at_the_flush() -> None:
    target = torch.zeros((3, 5), dtype=torch.int32)
    writes = StagedWrites(target)
    writes.stage(1, 2, np.array([7, 8, 9], dtype=np.int32))
    writes.stage(2, 0, np.array([1], dtype=np.int32))
    assert not target.any()
    writes.flush()
    assert target.tolist() == [[0] * 5, [0, 0, 7, 8, 9], [1, 0, 0, 0, 0]]
    target.zero_()
    writes.flush()
    assert not target.any(), "a flush publishes once"


def test_staged_writes_to_a_vector() -> None:
    target = torch.zeros(4, dtype=torch.int64)
    writes = StagedWrites(target)
    writes.stage(3, 0, np.array([5], dtype=np.int64))
    writes.flush()
    assert target.tolist() == [0, 0, 0, 5]


def test_staged_arrays_are_free_for_reuse_after_the_flush() -> None:
    target = torch.zeros(3, dtype=torch.int64)
    writes, values = StagedWrites(target), np.array([1, 2, 3])
    writes.stage(0, 0, values)
    writes.flush()
    values[:] = 0
    assert target.tolist() == [1, 2, 3]


def test_host_stream_runs_in_order_what_is_waited_for() -> None:
    stream = HostStream()
    seen: list[str] = []
    first, second, third = (stream(seen.append, name) for name in ("first", "second", "third"))
    assert seen == []
    second.result()
    assert seen == ["first", "second"]
    assert not third.done()
    first.result()
    third.result()
    assert seen == ["first", "second", "third"]


def test_work_of_a_host_stream_may_wait_for_work_before_it() -> None:
    stream = HostStream()
    begun = stream(int, "7")
    assert stream(lambda: begun.result() + 1).result() == 8


def test_work_that_fails_does_not_stop_what_follows() -> None:
    stream = HostStream()
    failed, fine = stream(int, "x"), stream(int, "7")
    assert fine.result() == 7
    with pytest.raises(ValueError, match="x"):
        failed.result()


@pytest.mark.parametrize("launcher", [HostStream(), InlineLauncher()])
def test_errors_come_out_where_the_result_is_read(launcher: object) -> None:
    def fail() -> None:
        raise RuntimeError("inside")

    future = launcher(fail)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="inside"):
        future.result()


def test_a_cuda_error_loses_the_device_and_others_do_not() -> None:
    assert is_device_lost(torch.AcceleratorError("CUDA error: an illegal memory access"))
    assert not is_device_lost(torch.OutOfMemoryError("out of memory"))
    assert not is_device_lost(IndexError("index 7 is out of bounds"))


def test_a_library_may_be_the_first_to_report_a_lost_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def synchronize() -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert is_device_lost(RuntimeError("Triton Error [CUDA]: device-side assert triggered"))
