"""A runner whose steps cannot be captured says so and runs them eagerly, or ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.startup import assembly
from sampling.noise import TILE
from sampling.vocab_shard import VocabShard


class _Uncapturable:
    """A model whose code looks at values on the host, as mixtures of experts do."""

    def __init__(self, *anything: Any) -> None:
        pass

    def capture(self, pool: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand much more")


NONE: Any = None


def uncapturable(monkeypatch: pytest.MonkeyPatch, shard: VocabShard) -> assembly.Assembly:
    """The parts of a runner whose decode steps cannot be captured, no more than `_graphs` uses."""
    monkeypatch.setattr(assembly, "DecodeGraphs", _Uncapturable)
    rows: Any = SimpleNamespace(shard=shard)
    return assembly.Assembly(NONE, NONE, rows, NONE, NONE, NONE, NONE)


def test_steps_that_cannot_be_captured_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = uncapturable(monkeypatch, VocabShard.whole(5))
    assert parts._graphs(NONE, NONE) is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "decode steps run without CUDA graphs: operation not permitted when stream is capturing"
    )


def test_ranks_whose_steps_cannot_be_captured_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would replay graphs, which exchange padded steps."""
    exchange: Any = SimpleNamespace(rank=0, size=2)
    parts = uncapturable(monkeypatch, VocabShard.split(2 * TILE, exchange))
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        parts._graphs(NONE, NONE)
