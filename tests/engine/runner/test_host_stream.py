"""The CPU's stream, and devices that are lost."""

from __future__ import annotations

import pytest
import torch

from engine.runner.host_stream import HostStream, InlineLauncher, is_device_lost


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
