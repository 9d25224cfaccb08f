"""Weights over a group of processes: a trainer of its own broadcasts them by gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.contracts.named_weights import TensorInfo
from engine.contracts.weights import (
    BeginUpdate,
    EndGroup,
    FinishUpdate,
    GroupSource,
    ReceiveTensors,
    WeightUpdateError,
)
from engine.weights.groups import buffers
from tests.engine.models.rewriting import (
    assert_holds,
    stored_tensors,
    text_logits,
    write_other,
)
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
from tests.engine.weights.rooms import given, room_of, update

HOW = ("alone", "packed", "bucket", "described")


def test_a_trainer_broadcasts_its_weights(tmp_path: Path) -> None:
    """Tensor by tensor, packed, all at once, and by descriptions that go before."""
    write_tiny(MODELS["qwen3"], tmp_path / "new")
    old = write_other(tmp_path / "new", tmp_path / "old")
    new = stored_tensors(tmp_path / "new")
    wanted, port = text_logits(load(tmp_path / "new")), free_port()
    command = [sys.executable, "-m", "tests.engine.weights.trainer"]
    arguments = [LOCALHOST, str(port), str(tmp_path / "new"), NAME, *HOW]
    trainer = subprocess.Popen([*command, *arguments], cwd=ROOT)
    model = load(tmp_path / "old")
    room, weights = room_of(model), model.named_weights()
    try:
        room.run(group_of(port))
        for how in HOW:
            update(room, given(old))
            room.run(BeginUpdate(check=True))
            room.run(ReceiveTensors(source=source_of(new, how)))
            room.run(FinishUpdate())
            assert_holds(weights, new)
            assert torch.equal(text_logits(model), wanted)
        room.run(EndGroup(name=NAME))
        assert trainer.wait(60) == 0
    finally:
        trainer.kill()


def test_a_trainer_that_starts_again_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """As vLLM's do, which end neither their group nor an update that they were killed in."""
    write_tiny(MODELS["qwen3"], tmp_path / "new")
    write_other(tmp_path / "new", tmp_path / "old")
    new, model = stored_tensors(tmp_path / "new"), load(tmp_path / "old")
    room, command = room_of(model), [sys.executable, "-m", "tests.engine.weights.trainer"]
    for is_killed in (True, False):
        port = free_port()
        arguments = [LOCALHOST, str(port), str(tmp_path / "new"), NAME, "alone"]
        trainer = subprocess.Popen([*command, *arguments], cwd=ROOT)
        try:
            room.run(group_of(port, forms_as="vllm"))
            room.run(BeginUpdate())
            room.run(ReceiveTensors(source=source_of(new, "alone")))
        finally:
            if is_killed:
                trainer.kill()
            trainer.wait(60)
    room.run(FinishUpdate())
    assert_holds(model.named_weights(), new)
    with pytest.raises(WeightUpdateError, match="there is a group 'weights'"):
        room.run(group_of(free_port()))
    room.run(EndGroup(name=NAME))


def test_a_group_that_nobody_joins(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    room = room_of(load(tmp_path))
    port = free_port()
    with pytest.raises(WeightUpdateError, match=f"did not form at {LOCALHOST}:{port} within 1 s"):
        room.run(group_of(port, timeout_s=1.0))
    assert_unknown(room)


def test_an_address_of_no_host_is_refused_at_once(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    room = room_of(load(tmp_path))
    for address in ("no-such-host.invalid", "\u0e01\u0e32", "a" * 200):
        with pytest.raises(WeightUpdateError, match="is no host's") as caught:
            room.run(group_of(free_port(), master_address=address, timeout_s=60.0))
        assert caught.value.code == "bad_source"
    assert_unknown(room)


@pytest.mark.parametrize(("offset", "size"), [(0, 2), (2, 2)])
def test_a_rank_outside_its_group(offset: int, size: int, tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    room = room_of(load(tmp_path))
    with pytest.raises(WeightUpdateError, match=f"rank {offset} .*world_size {size}"):
        room.run(group_of(1, rank_offset=offset, world_size=size))
    assert_unknown(room)


def test_buffers_end_once_they_are_over_full() -> None:
    infos = [TensorInfo((n,), torch.float32) for n in (2, 2, 1, 9, 1)]
    sizes = [[info.shape[0] for info in some] for some in buffers(infos, 16)]
    assert sizes == [[2, 2, 1], [9], [1]]


def test_lists_of_other_lengths_are_refused(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    room = room_of(load(tmp_path))
    room.run(BeginUpdate())
    source = GroupSource(group=NAME, names=("a", "b"), dtypes=("float32",), shapes=((1,),))
    with pytest.raises(WeightUpdateError, match="2 names, 1 dtypes and 1 shapes"):
        room.run(ReceiveTensors(source=source))
    room.run(BeginUpdate())
    source = GroupSource(group=NAME, names=("a",), dtypes=("float33",), shapes=((1,),))
    with pytest.raises(WeightUpdateError, match="dtype 'float33'; known are"):
        room.run(ReceiveTensors(source=source))
