"""Whole forwards over fixed tiles are the eager ones, and are replayed where they hold the step.

On the CPU a graph is a forward that runs again: addresses are as fixed there as in a graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.attention.fixed_tiles import most_tiles
from engine.attention.tiled import Cut, StepTiles
from engine.kernels.prefill_attention import Tiling
from engine.runner.graphs import piecewise_graphs
from engine.runner.graphs.piecewise_graphs import PiecewiseGraphs
from engine.runner.graphs.whole_graphs import MAX_TOKENS, WholeGraphs
from sampling.device.triton_support import INTERPRETED
from tests.engine.runner.graphs.replayed_models import GEMMA4, HYBRIDS, Model, Rows, write

CUT: Cut = (2, Tiling(queries=64, keys=64, num_warps=4, num_stages=3))
STEPS: list[Rows] = [[(0, 30)], [(17, 3), (0, 9), (2, 1)], [(0, 2)], [(0, 41), (50, 5)]]
"""In turn, in graphs of 32 and 48 tokens."""


class Rerun:
    """Stands for a graph: a replay runs what was run last while it was captured."""

    last: Callable[[], None]

    def __init__(self) -> None:
        self.num_replays = 0

    def capture_begin(self, **_: Any) -> None: ...

    def capture_end(self) -> None:
        self._work = Rerun.last

    def replay(self) -> None:
        self.num_replays += 1
        self._work()


@pytest.fixture
def reruns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that run again what they hold."""
    run = PiecewiseGraphs._run

    def noted(
        self: PiecewiseGraphs, size: int, fill: Callable[[int], None], mixed: bool = True
    ) -> None:
        again = partial(run, self, size, fill, mixed=mixed)
        monkeypatch.setattr(Rerun, "last", again, raising=False)
        Rerun.last()

    monkeypatch.setattr(PiecewiseGraphs, "_run", noted)
    monkeypatch.setattr(piecewise_graphs, "capturing_stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Rerun)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.usefixtures("reruns")
@pytest.mark.parametrize(
    "kind", ["qwen3", "gemma2", *GEMMA4, *HYBRIDS]
)  # gemma2 has windows and caps
def test_whole_forwards_are_the_eager_ones(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kind, tmp_path)
    model = Model(tmp_path, "float32", "cpu", max_tokens=48)

    def refuse(*anything: Any) -> None:
        raise AssertionError("a step that a whole graph holds ran in pieces")

    monkeypatch.setattr(PiecewiseGraphs, "_replay_pieces", refuse)
    for rows in STEPS:
        for each in (*model.buffers.queries, *model.buffers.attended):
            each.fill_(torch.nan)  # padding's must not reach the null block
        model.check(rows)
        assert all(layer[0].isfinite().all() for layer in model.cache.layers)


class Attention:
    """Stands for `CudaAttention`: a layer fills `attended` with the size of its step's tiles.

    Attributes:
        tiled_step: of the step that was begun last.
    """

    def __init__(self) -> None:
        self.tiled_step: StepTiles | None = None
        self.tiled = SimpleNamespace(cuts={CUT}, attend=self._attend)

    def _attend(self, layer: int, q: torch.Tensor, out: torch.Tensor, step: StepTiles) -> None:
        assert len(q) == len(out)
        out.fill_(len(step.by_cut[CUT]))


def step_of(num_tiles: int) -> StepTiles:
    """Of one row."""
    tables, tiles = torch.zeros((1, 4), dtype=torch.int32), torch.ones((num_tiles, 4)).long()
    return StepTiles(tables, {CUT: tiles})


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> tuple[WholeGraphs, Attention]:
    """The graphs of 32 and 64 tokens; more were not captured."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Rerun)
    attention: Any = Attention()
    attended, sizes = torch.zeros(MAX_TOKENS + 1, 1, 1), []
    graphs = WholeGraphs(attention, [torch.zeros_like(attended)], [attended])

    def run(size: int, fill: Callable[[int], None]) -> None:
        sizes.append(size)
        monkeypatch.setattr(Rerun, "last", lambda: None, raising=False)
        fill(0)
        assert (attended[:size] == most_tiles(size, CUT)).all()
        assert not attended[size:].any()

    for size in (32, 64, MAX_TOKENS + 1):
        graphs.capture(size, run, None)
    assert sizes == [32, 32, 64, 64]  # once to load kernels
    return graphs, attention


def test_steps_that_fit_are_replayed(whole: tuple[WholeGraphs, Attention]) -> None:
    graphs, attention = whole
    for size in (32, 64):
        attention.tiled_step = step_of(most_tiles(size, CUT))
        assert graphs.replay(size)
        attention.tiled_step = step_of(most_tiles(size, CUT) + 1)
        assert not graphs.replay(size)
    assert [graph.num_replays for graph in _graphs(graphs)] == [1, 1]


def test_other_steps_are_not(whole: tuple[WholeGraphs, Attention]) -> None:
    graphs, attention = whole
    assert not graphs.replay(32)  # rows decode, or FlashInfer attends
    attention.tiled_step = step_of(1)
    assert not graphs.replay(MAX_TOKENS + 1)
    assert [graph.num_replays for graph in _graphs(graphs)] == [0, 0]


def _graphs(whole: WholeGraphs) -> list[Rerun]:
    graphs: Any = whole._graphs
    return list(graphs.values())
