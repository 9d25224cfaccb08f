"""The bar of a pass, on a terminal only."""

from __future__ import annotations

import io

import pytest

from server.bench.display import LiveDisplay
from server.bench.load import LoadProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_a_pass_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.0, 10.5, 20.0, 20.0])
    monkeypatch.setattr("server.bench.display.monotonic", lambda: next(clock))
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    display = LiveDisplay()
    display("stream x 4", LoadProgress(), 8)
    display("stream x 4", LoadProgress(done=2, failed=1, tokens=50), 8)
    assert "stream x 4:  25%" in terminal.getvalue()
    assert "2/8" in terminal.getvalue()
    assert "100 tokens/s, 1 failed" in terminal.getvalue()
    display("burst", LoadProgress(), 8)
    display.close()
    assert terminal.getvalue().rpartition("\r")[2].strip() == ""


def test_a_file_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    display = LiveDisplay()
    display("stream", LoadProgress(), 8)
    display.close()
    assert file.getvalue() == ""
