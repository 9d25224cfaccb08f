"""Weights that are read where memory is short: all ranks refuse, and all go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.contracts.named_weights import Portion
from engine.contracts.weights import (
    AnyWeightCommand,
    BeginUpdate,
    FinishUpdate,
    ListWeights,
    ReadWeight,
    WeightList,
    WeightUpdateError,
    WeightValues,
)
from engine.models.loader import load_model
from engine.weights import commands
from engine.weights.commands import RankWeights
from sampling.device.ranks import RankExchange
from tests.engine.models.families.shard_models import MODELS as DIVIDED
from tests.engine.models.rewriting import assert_holds, stored_tensors
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.weights.rooms import CPU, given, room_of, update
from tests.sampling.ranks import on_ranks

NAME = "model.layers.1.self_attn.o_proj.weight"
CHECKSUMS = ListWeights(checksums=True)
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Lack:
    """There is no memory for a weight's part, or for the whole of it, until `ends`."""

    def __init__(self, model: CausalLM, name: str, of: str) -> None:
        self.of: str | None = of
        self._unit = model.named_weights()[name].unit
        self._get, self._store = self._unit.get, self._unit.store
        self._unit.get, self._unit.store = self.get, self.store

    def get(self) -> Mapping[str, Portion]:
        if self.of == "part":
            raise NO_MEMORY
        return self._get()

    def store(self, whole: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if self.of == "whole":
            raise NO_MEMORY
        return self._store(whole)

    def ends(self) -> None:
        self.of = None


def refuse(room: RankWeights, *refused: AnyWeightCommand) -> None:
    for command in refused:
        with pytest.raises(WeightUpdateError, match="OutOfMemoryError: CUDA out of") as caught:
            room.run(command)
        assert caught.value.code == "no_memory"


@pytest.mark.parametrize("of", ["part", "whole"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_weight_for_which_one_rank_has_no_memory_is_not_read(
    size: int, of: str, tmp_path: Path
) -> None:
    write_tiny(DIVIDED["qwen3-moe"], tmp_path)
    held = stored_tensors(tmp_path)[NAME]

    def work(exchange: RankExchange) -> None:
        model = load_model(ModelConfig(model=str(tmp_path)), CPU, exchange)
        room = room_of(model, exchange)
        lack = Lack(model, NAME, of if exchange.rank == size - 1 else "nothing")
        refuse(room, CHECKSUMS, ReadWeight(name=NAME))
        lack.ends()
        read = room.run(ReadWeight(name=NAME, truncate=2))
        assert isinstance(read, WeightValues)
        assert read.values == tuple(held[:2].flatten().tolist())

    on_ranks(size, work)


def test_a_checksum_for_which_there_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(whole: torch.Tensor) -> str:
        raise NO_MEMORY

    write_tiny(MODELS["qwen3"], tmp_path)
    room = room_of(load(tmp_path))
    monkeypatch.setattr(commands, "checksum", fail)
    refuse(room, CHECKSUMS)
    assert isinstance(room.run(ListWeights()), WeightList), "no memory is needed for names"


def test_an_update_ends_where_its_head_cannot_be_compared_for_lack_of_memory(
    tmp_path: Path,
) -> None:
    write_tiny(MODELS["llama-tied"], tmp_path)
    model, held = load(tmp_path), stored_tensors(tmp_path)
    room, head = room_of(model), given({"lm_head.weight": held["model.embed_tokens.weight"]})
    lack = Lack(model, "model.embed_tokens.weight", "part")
    room.run(BeginUpdate())
    room.run(head)
    refuse(room, FinishUpdate())
    lack.ends()
    update(room, head)
    assert_holds(model.named_weights(), held)
