"""Ranks write an update together: what rank 0 answers is so of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import ModelConfig
from engine.contracts.runner import RunnerLostError
from engine.contracts.weights import BeginUpdate, FinishUpdate, FolderSource, ReceiveTensors
from engine.models.loader import load_model
from engine.weights.commands import RankWeights
from engine.weights.update import WeightUpdate
from sampling.device.ranks import RankExchange
from tests.engine.models.families.shard_models import MODELS
from tests.engine.models.rewriting import write_other
from tests.engine.models.serving import write_tiny
from tests.engine.weights.rooms import CPU, room_of
from tests.sampling.ranks import on_ranks

SIZE = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(MODELS["qwen3-moe"], tmp_path / "old")
    write_other(tmp_path / "old", tmp_path / "new")
    return tmp_path


def with_update(folder: Path, exchange: RankExchange) -> RankWeights:
    """A rank whose update has only to be finished."""
    room = room_of(load_model(ModelConfig(model=str(folder / "old")), CPU, exchange), exchange)
    room.run(BeginUpdate())
    room.run(ReceiveTensors(source=FolderSource(path=str(folder / "new"))))
    return room


def test_a_rank_reports_once_all_have_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that hears of it may write its next checkpoint into the same files."""
    written, write = list[WeightUpdate](), WeightUpdate.write

    def noted(update: WeightUpdate) -> None:
        write(update)
        written.append(update)

    monkeypatch.setattr(WeightUpdate, "write", noted)

    def work(exchange: RankExchange) -> int:
        with_update(folder, exchange).run(FinishUpdate())
        return len(written)

    assert on_ranks(SIZE, work) == [SIZE] * SIZE


def test_what_one_rank_could_not_write_ends_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, write = list[WeightUpdate](), WeightUpdate.write

    def some_fail(update: WeightUpdate) -> None:
        if update in failing:
            raise OSError("no such device")
        write(update)

    monkeypatch.setattr(WeightUpdate, "write", some_fail)

    def work(exchange: RankExchange) -> str:
        room = with_update(folder, exchange)
        if exchange.rank == 1:
            failing.append(room._begun())
        with pytest.raises(RunnerLostError) as lost:
            room.run(FinishUpdate())
        return str(lost.value)

    assert on_ranks(SIZE, work) == ["weights were written in part: OSError: no such device"] * SIZE
