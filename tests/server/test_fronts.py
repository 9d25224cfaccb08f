"""The table that fronts share: each writes its own row, all read every row."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from server.errors import ApiError
from server.fronts import FrontTable, make_table_file
from server.http.admission import AdmissionControl
from tests.fakes import FakeEngine


def tables(count: int) -> list[FrontTable]:
    fd = make_table_file(count)
    return [FrontTable(count, index, fd) for index in range(count)]


def test_rows_are_summed_and_a_cleared_one_counts_no_more() -> None:
    first, second, supervisor = *tables(2), FrontTable()
    first.add_in_flight(5)
    second.add_in_flight(3)
    second.add_in_flight(-1)
    assert first.num_in_flight == second.num_in_flight == 7
    assert supervisor.num_in_flight == 0, "a table of its own"
    first.clear(1)
    assert second.num_in_flight == 5


def test_only_fronts_that_are_there_have_processes_and_connections() -> None:
    first, second, _ = tables(3)
    assert first.pids == {}
    assert first.least_connections > 1 << 40, "nobody to step back for"
    first.enter()
    first.set_connections(4)
    assert second.pids == {0: os.getpid()}
    assert second.least_connections == 4
    second.enter()
    assert first.least_connections == 0


def test_another_process_sees_the_same_rows() -> None:
    fd = make_table_file(2)
    mine = FrontTable(2, 0, fd)
    mine.add_in_flight(2)
    program = (
        "from server.fronts import FrontTable\n"
        f"table = FrontTable(2, 1, {fd})\n"
        "table.enter()\n"
        "table.add_in_flight(40)\n"
        "print(table.num_in_flight)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], pass_fds=(fd,), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.communicate()[0].strip() == "42"
    assert mine.num_in_flight == 42
    assert mine.pids == {1: process.pid}


def test_admission_is_one_over_all_fronts() -> None:
    first, second = (AdmissionControl(FakeEngine(max_rows=2), 1, each) for each in tables(2))
    first.admit(2)
    second.admit(1)
    for admission in (first, second):
        with pytest.raises(ApiError, match="with this request 2, at most 1"):
            admission.admit(1)
    first.release(1)
    second.admit(1)
    assert first.num_in_flight == 3
