"""How far work is, on a terminal and elsewhere."""

from __future__ import annotations

import io
import time

import pytest

from engine import progress as module
from engine.progress import Ticker


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_count_until_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)
    out = Terminal()
    with Ticker(out, "checks") as ticker:
        ticker.print("one")
        while "1 checks so far, 0 s ..." not in out.getvalue():
            time.sleep(0.001)
        ticker.print("two")
    assert "\r\x1b[Kone\n" in out.getvalue()
    assert "\r\x1b[Ktwo\n" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_elsewhere_there_are_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)
    out = io.StringIO()
    with Ticker(out, "checks") as ticker:
        ticker.print("one")
        time.sleep(0.02)
    assert out.getvalue() == "one\n"
