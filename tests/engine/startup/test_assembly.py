"""Making a runner: what is said of what cannot be captured."""

from __future__ import annotations

from typing import Any

import pytest

from engine.startup import assembly as parts


class _Uncapturable:
    """A model whose code looks at values on the host, as mixtures of experts do."""

    def __init__(self, *parts: Any) -> None:
        pass

    def capture(self, pool: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand much more")


def test_steps_that_cannot_be_captured_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "DecodeGraphs", _Uncapturable)
    part: Any = None
    assert parts.Parts(*[part] * 7)._graphs(part, part) is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "decode steps run without CUDA graphs: operation not permitted when stream is capturing"
    )
