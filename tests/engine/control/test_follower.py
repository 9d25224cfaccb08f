"""Tensors that are refused before ranks are asked, over ranks that hold weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.contracts.control import ControlReply, RunWeights, Sleep, WakeUp
from engine.contracts.weights import (
    AbandonUpdate,
    AnyWeightCommand,
    BeginUpdate,
    FinishUpdate,
    ReceiveTensors,
    SetVersion,
)
from tests.engine.control.loop import Loop
from tests.engine.models.rewriting import assert_holds, stored_tensors, write_other
from tests.engine.models.serving import load
from tests.engine.tiny_models import write_model
from tests.engine.weights.rooms import given, room_of


class Served:
    """An engine's commands over a model of version 7, and halves of another's tensors."""

    def __init__(self, folder: Path) -> None:
        write_model("qwen3", folder / "old")
        model = load(folder / "old")
        self.weights = model.named_weights()
        self.old = stored_tensors(folder / "old")
        self.new = write_other(folder / "old", folder / "new")
        names = sorted(self.new)
        self.halves = [
            given({name: self.new[name] for name in names[start::2]}) for start in (0, 1)
        ]
        self.loop = Loop()
        self.loop.runner.weights = room_of(model).run  # type: ignore[method-assign]
        assert self.run(SetVersion(version="7")).error is None

    def run(self, command: AnyWeightCommand) -> ControlReply:
        self.loop.send(RunWeights(weights=command))
        return self.loop.last()

    def refuse(self, command: ReceiveTensors, code: str) -> None:
        """Send tensors that are refused: for their version, or since the weights are asleep."""
        if code == "asleep":
            self.loop.send(Sleep())
            self.loop.settle()
        else:
            command = replace(command, version="6")
        assert self.run(command).code == code
        if code == "asleep":
            self.loop.send(WakeUp())
            self.loop.settle()


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


@pytest.mark.parametrize("code", ["version_backwards", "asleep"])
@pytest.mark.parametrize("takes_parts", [False, True])
def test_tensors_that_are_refused_end_their_update(
    takes_parts: bool, code: str, served: Served
) -> None:
    """What came before them is no whole checkpoint, nor are they its version's."""
    first, second = (replace(half, is_part=takes_parts) for half in served.halves)
    served.run(BeginUpdate(takes_parts=takes_parts))
    assert served.run(replace(first, version="8")).error is None
    served.refuse(second, code)
    assert served.run(FinishUpdate(of_parts=takes_parts)).code == "no_update"
    assert_holds(served.weights, served.old)
    assert served.run(BeginUpdate()).error is None
    for half in served.halves:
        served.run(half)
    state = served.run(FinishUpdate()).state
    assert state.weight_version == "8", "the largest, and one more"
    assert_holds(served.weights, served.new)


@pytest.mark.parametrize("code", ["version_backwards", "asleep"])
def test_a_part_that_is_refused_leaves_an_update_that_takes_none(code: str, served: Served) -> None:
    served.run(BeginUpdate())
    served.run(replace(served.halves[0], version="9"))
    served.refuse(replace(given(served.old), is_part=True), code)
    served.run(served.halves[1])
    assert served.run(FinishUpdate()).state.weight_version == "9"
    assert_holds(served.weights, served.new)


def test_an_update_is_given_up_while_the_weights_sleep(served: Served) -> None:
    """Else none could begin after it: whoever gave it up does so once."""
    served.run(BeginUpdate())
    served.loop.send(Sleep())
    assert served.run(AbandonUpdate()).error is None
    served.loop.send(WakeUp())
    assert served.run(BeginUpdate()).error is None


@pytest.mark.parametrize("ends", ["abandoned", "refused"])
def test_the_version_of_an_update_that_ended_is_no_other_s(ends: str, served: Served) -> None:
    served.run(BeginUpdate())
    served.run(replace(served.halves[0], version="8"))
    if ends == "abandoned":
        served.run(AbandonUpdate())
    else:
        served.refuse(served.halves[1], "version_backwards")
    served.run(SetVersion(version="9"))
    assert served.run(FinishUpdate()).code == "no_update"
