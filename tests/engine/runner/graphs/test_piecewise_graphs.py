"""A forward replayed in pieces is the eager one; its padding leaves no trace.

Replayed and eager layers differ in the order of sums at most, where a library takes another kernel
for the padded count: a few roundings a layer, of values no larger than the largest.

On the CPU a piece is a part of a forward that runs again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from demo import MODEL_FOLDER
from engine.runner.forward import Forward
from engine.runner.graphs import piecewise_graphs, whole_graphs
from engine.runner.graphs.fixed_states import PROMPTS
from engine.runner.graphs.piecewise_graphs import PiecewiseGraphs, token_ladder
from engine.runner.graphs.whole_graphs import WholeGraphs
from sampling.device.triton_support import INTERPRETED
from tests.engine.runner.graphs.replayed_models import (
    GEMMA4,
    HYBRIDS,
    MAX_TOKENS,
    Model,
    Rows,
    write,
)

STEPS: list[tuple[Rows, bool]] = [
    ([(0, 60)], True),
    ([(0, 5)], True),
    ([(0, 20), (0, 7), (0, 33), (0, 1)], True),
    ([(40, 9)], True),  # after a prefix
    ([(33, 30), (0, 2), (90, 1), (16, 17)], True),
    ([(0, 2)] * 25, False),  # more tiles than there is room for
    ([(0, 31)], True),
    ([(0, 100)], True),
]
"""Steps in turn, and whether they are replayed whole."""
STEPS_WITH_STATES: list[tuple[Rows, int, bool]] = [
    ([(0, 30)], 0, True),
    ([(17, 1), (5, 1), (0, 21), (3, 9)], 2, True),
    ([(17, 3), (0, 9), (2, 1)], 0, True),
    ([(0, 2)] * (PROMPTS + 1), 0, False),
    ([(4, 1), (0, 40)], 1, True),
]
"""Steps in turn, how many of their rows decode, and whether they are replayed."""


def test_the_ladder_wastes_little() -> None:
    for max_tokens in (1, 10, 32, 33, 100, 1150, 2048, 8192, 10_000):
        sizes = token_ladder(max_tokens)
        assert sizes[-1] == max_tokens
        assert list(sizes) == sorted(set(sizes))
        for tokens in range(32, max_tokens + 1):
            padded = min(size for size in sizes if size >= tokens)
            assert padded <= 1.5 * tokens
            assert tokens <= 1024 or padded <= 1.25 * tokens


class Stepped:
    """A forward on a thread of its own, which stops wherever a layer attends.

    Args:
        run: runs it, and calls a function where it is to stop.
    """

    def __init__(self, run: Callable[[Callable[[int], None]], None]) -> None:
        self.has_ended = False
        self._run, self._error = run, list[BaseException]()
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def resume(self) -> None:
        """Run it up to where it stops next, or ends."""
        self._go.release()
        self._done.acquire()
        if self._error:
            raise self._error[0]

    def _work(self) -> None:
        self._go.acquire()
        try:
            with torch.inference_mode():
                self._run(self._stop)
        except BaseException as error:
            self._error.append(error)
        self.has_ended = True
        self._done.release()

    def _stop(self, layer: int) -> None:
        self._done.release()
        self._go.acquire()


class Piece:
    """Stands for a graph: a replay runs the forward that was captured last, up to where it ended.

    Replays go on with one forward until it ends, whose pieces are replayed in order.
    """

    captured: Callable[[Callable[[int], None]], None]
    active: Stepped | None = None

    def capture_begin(self, **_: Any) -> None: ...

    def capture_end(self) -> None:
        self._run = Piece.captured

    def replay(self) -> None:
        Piece.active = Piece.active or Stepped(self._run)
        Piece.active.resume()
        if Piece.active.has_ended:
            Piece.active = None


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that run again on the CPU what they hold."""
    run = PiecewiseGraphs._run

    def noted(
        self: PiecewiseGraphs, size: int, fill: Callable[[int], None], mixed: bool = True
    ) -> None:
        monkeypatch.setattr(Piece, "captured", partial(run, self, size, mixed=mixed), raising=False)
        run(self, size, fill, mixed=mixed)

    monkeypatch.setattr(PiecewiseGraphs, "_run", noted)
    monkeypatch.setattr(piecewise_graphs, "capturing_stream", contextlib.nullcontext)
    monkeypatch.setattr(whole_graphs, "MAX_TOKENS", 0)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Piece)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("kind", HYBRIDS)
def test_pieces_are_the_eager_forward_of_layers_with_states(kind: str, tmp_path: Path) -> None:
    """Of prompts, of rows that decode beside them, and of more of either than are captured."""
    write(kind, tmp_path)
    model = Model(tmp_path, "float32", "cpu", max_tokens=48)
    for rows, num_decodes, fits in STEPS_WITH_STATES:
        for each in (*model.buffers.queries, *model.buffers.attended):
            each.fill_(torch.nan)
        model.check(rows, num_decodes)
        assert model.replays == [fits]


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("kind", ["gemma2", *GEMMA4])
def test_pieces_are_the_eager_forward(kind: str, tmp_path: Path) -> None:
    """Of layers with heads of other sizes, and such as read the keys of an earlier one."""
    write(kind, tmp_path)
    model = Model(tmp_path, "float32", "cpu", max_tokens=48)
    for rows in ([(0, 30)], [(17, 3), (0, 9), (2, 1)], [(0, 41), (50, 5)]):
        for each in (*model.buffers.queries, *model.buffers.attended):
            each.fill_(torch.nan)  # padding's must not reach the null block
        model.check(rows)
        assert all(layer[0].isfinite().all() for layer in model.cache.layers)


def in_pieces(model: Model) -> Forward:
    """A forward that replays pieces alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_graphs, "MAX_TOKENS", 0)
        return model.captured()


@pytest.fixture(scope="module", params=["qwen3", "gemma2", *HYBRIDS, *GEMMA4, "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The demo model in bfloat16, tiny ones in float32, of which gemma2 has windows and caps."""
    if request.param == "bfloat16":
        return Model(MODEL_FOLDER, request.param, "cuda", MAX_TOKENS)
    folder = tmp_path_factory.mktemp(request.param)
    write(request.param, folder)
    return Model(folder, "float32", "cuda", MAX_TOKENS)


@pytest.fixture(scope="module")
def pieces(model: Model) -> Forward:
    return in_pieces(model)


@pytest.fixture(params=["whole", "in pieces"])
def model_each_way(
    request: pytest.FixtureRequest,
    model: Model,
    pieces: Forward,
    monkeypatch: pytest.MonkeyPatch,
) -> Model:
    """The model, whose short steps are replayed whole or in pieces."""
    if request.param == "in pieces":
        monkeypatch.setattr(model, "replayed", pieces)
    return model


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 5, 31, 32, 33, 64, 65, 99, 100])
def test_replayed_is_eager(model_each_way: Model, num_tokens: int) -> None:
    model_each_way.check([(0, num_tokens)])


@pytest.mark.gpu
def test_whole_forwards_have_the_bits_of_pieces(
    model: Model, pieces: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of several sizes one after another, each of which leaves the next its buffers."""
    were_whole = list[bool]()
    replay = WholeGraphs.replay

    def noted(self: WholeGraphs, size: int) -> bool:
        were_whole.append(replay(self, size))
        return were_whole[-1]

    for rows, is_whole in STEPS:
        kept = []
        were_whole.clear()
        monkeypatch.setattr(WholeGraphs, "replay", noted)
        for forward in (pieces, model.replayed):
            model.forget()
            hidden = model.run(forward, rows)
            kept.append([*hidden, *(each.clone() for each in model.kept())])
        is_eager = model.states is not None and len(rows) > PROMPTS
        assert were_whole == ([] if is_eager else [False, is_whole]), rows
        for ours, wanted in zip(*kept, strict=True):
            assert ours is not None
            assert wanted is not None
            assert torch.equal(ours, wanted), rows


@pytest.mark.gpu
def test_padding_writes_to_the_null_block_and_nothing_unusable(model_each_way: Model) -> None:
    model = model_each_way
    model.run(model.replayed, [(0, MAX_TOKENS)])  # leaves its slots in the buffers
    before = [layer.clone() for layer in model.cache.layers]
    for each in model.buffers.attended:
        each.fill_(torch.nan)
    hidden = model.run(model.replayed, [(0, 70)], first_block=20)
    assert hidden.final.isfinite().all()
    for layer, old in zip(model.cache.layers, before, strict=True):
        assert layer[0].isfinite().all()
        assert torch.equal(layer[1:20], old[1:20])


@pytest.mark.gpu
def test_steps_beyond_the_ladder_run_eagerly(model: Model) -> None:
    got, wanted = (
        model.run(forward, [(0, MAX_TOKENS + 1)]) for forward in (model.replayed, model.eager)
    )
    assert torch.equal(got.final, wanted.final)
