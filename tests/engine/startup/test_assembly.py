"""A runner whose steps cannot be captured says so and runs them eagerly."""

from __future__ import annotations

from typing import Any

import pytest

from engine.startup import assembly


class _Uncapturable:
    """A model whose code looks at values on the host, as mixtures of experts do."""

    def __init__(self, *anything: Any) -> None:
        pass

    def capture(self, pool: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand much more")


def test_steps_that_cannot_be_captured_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "DecodeGraphs", _Uncapturable)
    none: Any = None
    assert assembly.Assembly(*[none] * 7)._graphs(none, none) is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "decode steps run without CUDA graphs: operation not permitted when stream is capturing"
    )
