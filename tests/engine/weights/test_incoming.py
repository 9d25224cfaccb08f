"""Tensors that were refused while a trainer broadcasts them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from engine.contracts.weights import (
    BeginUpdate,
    DescribedSource,
    EndGroup,
    FinishUpdate,
    GroupSource,
    PassTensors,
    ReceiveTensors,
    WeightUpdateError,
)
from engine.weights.agreement import agreed
from engine.weights.groups import WeightGroups
from engine.weights.incoming import IncomingTensors
from sampling.device.ranks import RankExchange
from tests.engine.models.rewriting import assert_holds, stored_tensors, write_other
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.weights.grouped_rooms import (
    LOCALHOST,
    NAME,
    ROOT,
    assert_unknown,
    free_port,
    group_of,
    source_of,
)
from tests.engine.weights.rooms import CPU, given, room_of, update
from tests.sampling.ranks import on_ranks


@pytest.fixture
def broadcast(tmp_path: Path) -> Iterator[Broadcast]:
    own = Broadcast(tmp_path)
    yield own
    with contextlib.suppress(WeightUpdateError):  # most have left it
        own.room.run(EndGroup(name=NAME))
    for trainer in own.trainers:
        trainer.kill()
        trainer.wait()


class Broadcast:
    """A model, the tensors of another checkpoint, and trainers that broadcast those."""

    def __init__(self, folder: Path) -> None:
        write_tiny(MODELS["qwen3"], folder / "new")
        write_other(folder / "new", folder / "old")
        self.folder = folder / "new"
        self.new = stored_tensors(self.folder)
        model = load(folder / "old")
        self.room, self.weights = room_of(model), model.named_weights()
        self.trainers: list[subprocess.Popen[bytes]] = []

    def train(self, *ways: str) -> subprocess.Popen[bytes]:
        """Form a group with a trainer that broadcasts so, time after time."""
        port = free_port()
        command = [sys.executable, "-m", "tests.engine.weights.trainer"]
        arguments = [LOCALHOST, str(port), str(self.folder), NAME, *ways]
        trainer = subprocess.Popen([*command, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)
        self.trainers.append(trainer)
        self.room.run(group_of(port))
        return trainer

    def renamed(self, how: str) -> ReceiveTensors:
        """All tensors, some of which have names that are unknown."""
        if how == "misnamed":
            return ReceiveTensors(source=source_of({}, "described"))
        names = [f"other.{name}" if i % 3 == 1 else name for i, name in enumerate(self.new)]
        tensors = dict(zip(names, self.new.values(), strict=True))
        return ReceiveTensors(source=source_of(tensors, how))

    def refuse(self, code: str, command: ReceiveTensors, *, begins: bool = True) -> None:
        if begins:
            self.room.run(BeginUpdate())
        with pytest.raises(WeightUpdateError) as caught:
            self.room.run(command)
        assert caught.value.code == code


@pytest.mark.parametrize("how", ["alone", "packed", "bucket", "misnamed"])
def test_tensors_of_a_refused_update_are_not_those_of_the_next(
    how: str, broadcast: Broadcast
) -> None:
    trainer = broadcast.train(how, "alone")
    broadcast.refuse("unknown_weight", broadcast.renamed(how))
    update(broadcast.room, ReceiveTensors(source=source_of(broadcast.new, "alone")))
    assert_holds(broadcast.weights, broadcast.new)
    broadcast.room.run(EndGroup(name=NAME))
    assert trainer.wait(60) == 0


def test_tensors_are_received_of_updates_that_never_began(broadcast: Broadcast) -> None:
    """Without a beginning, in the middle of another update, and refused by the engine."""
    trainer = broadcast.train("alone", "packed", "described", "bucket")
    source = source_of(broadcast.new, "alone")
    broadcast.refuse("no_update", ReceiveTensors(source=source), begins=False)
    source = source_of(broadcast.new, "packed")
    broadcast.refuse("update_in_progress", ReceiveTensors(source=source, is_part=True))
    broadcast.room.run(PassTensors(source=source_of({}, "described")))
    broadcast.room.run(ReceiveTensors(source=source_of(broadcast.new, "bucket")))
    broadcast.room.run(FinishUpdate())
    assert_holds(broadcast.weights, broadcast.new)
    broadcast.room.run(EndGroup(name=NAME))
    assert trainer.wait(60) == 0


@pytest.mark.parametrize("how", ["alone", "undescribable"])
def test_a_group_is_left_where_its_tensors_cannot_be_received(
    how: str, broadcast: Broadcast
) -> None:
    broadcast.train(how, "alone")
    source = source_of(broadcast.new, "described" if how == "undescribable" else how)
    if isinstance(source, GroupSource):
        source = replace(source, dtypes=("float33", *source.dtypes[1:]))
        broadcast.refuse("wrong_dtype", ReceiveTensors(source=source))
    else:
        broadcast.refuse("bad_source", ReceiveTensors(source=source))
    assert_unknown(broadcast.room)


def test_ranks_leave_a_group_together() -> None:
    """What one of them cannot receive: the others would wait for the next update's tensors."""

    class Groups(WeightGroups):
        def __init__(self, exchange: RankExchange) -> None:
            super().__init__(CPU, exchange)
            self.names, self._own = {NAME}, exchange.rank

        def has(self, name: str) -> bool:
            return name in self.names

        def broadcast(self, *args: object, **options: object) -> Iterator[torch.Tensor]:
            yield torch.zeros(1)
            if self._own:
                raise RuntimeError("out of memory")
            yield torch.zeros(1)

        def leave(self, name: str) -> None:
            self.names.remove(name)

    def names_after(exchange: RankExchange) -> set[str]:
        source = source_of({"a": torch.zeros(1), "b": torch.zeros(1)}, "alone")
        groups = Groups(exchange)
        IncomingTensors(source, groups, CPU, exchange).pass_over()
        return groups.names

    assert on_ranks(2, names_after) == [set(), set()]


def unsearchable(folder: Path) -> Path:
    return folder / ("x" * 300)  # as of other errors of a file system, which root does not get


@pytest.mark.parametrize("how", ["begun", "alone", "part", "passed over"])
def test_a_folder_that_cannot_be_looked_at_is_refused(how: str, broadcast: Broadcast) -> None:
    """Whether its trainer broadcasts is not known, so that its group is left."""
    broadcast.train("alone", "bucket")
    source = DescribedSource(group=NAME, path=str(unsearchable(broadcast.folder)))
    command = ReceiveTensors(source=source, is_part=how == "part")
    if how == "passed over":
        broadcast.room.run(PassTensors(source=source))
    elif how == "part":
        broadcast.refuse("update_in_progress", command)
        broadcast.room.run(given(broadcast.new))
        broadcast.room.run(FinishUpdate())
        assert_holds(broadcast.weights, broadcast.new)
    else:
        wanted = "no_update" if how == "alone" else "bad_source"
        broadcast.refuse(wanted, command, begins=how == "begun")
    assert_unknown(broadcast.room)


def test_a_folder_that_cannot_be_looked_at_is_refused_without_a_group(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path / "model")
    room = room_of(load(tmp_path / "model"))
    source = DescribedSource(group=NAME, path=str(unsearchable(tmp_path)))
    room.run(PassTensors(source=source))
    room.run(BeginUpdate())
    with pytest.raises(WeightUpdateError, match="File name too long") as caught:
        room.run(ReceiveTensors(source=source))
    assert caught.value.code == "bad_source"


@pytest.mark.parametrize("sees", ["one", "none"])
def test_ranks_that_see_different_folders_receive_alike(sees: str, tmp_path: Path) -> None:
    """Weights that one sees are written to the folder; a rank that lacks them refuses for all."""
    for rank in range(2):
        (tmp_path / f"rank-{rank}").mkdir()
    if sees == "one":
        save_file({"a": torch.zeros(1)}, tmp_path / "rank-1" / "model.safetensors")

    class Groups(WeightGroups):
        def has(self, name: str) -> bool:
            return True

        def described(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
            yield "b", torch.zeros(1)

    def names_of(exchange: RankExchange) -> list[str]:
        path = str(tmp_path / f"rank-{exchange.rank}")
        source = DescribedSource(group=NAME, path=path)
        tensors = IncomingTensors(source, Groups(CPU, exchange), CPU, exchange)
        if sees == "none":
            return agreed(lambda: [each.name for each in tensors], exchange)
        with pytest.raises(WeightUpdateError, match="has no weights"):
            agreed(lambda: list(tensors), exchange)
        tensors.pass_over()
        return []

    wanted = ["b"] if sees == "none" else []
    assert on_ranks(2, names_of) == [wanted, wanted]
