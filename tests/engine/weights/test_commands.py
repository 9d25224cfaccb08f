"""Updates of a loaded model: all of one, or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save, save_file

from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.contracts.runner import RunnerLostError
from engine.contracts.weights import (
    AbandonUpdate,
    BeginUpdate,
    FinishUpdate,
    FolderSource,
    GivenSource,
    LetWeightsGo,
    ListWeights,
    ReadWeight,
    ReceiveTensors,
    SetVersion,
    TensorBytes,
    UpdateReport,
    WeightList,
    WeightUpdateError,
    WeightValues,
)
from engine.models.loader import load_model
from engine.weights.commands import RankWeights
from sampling.device.ranks import LoneRank, RankExchange
from tests.engine.models.families.shard_models import MODELS as DIVIDED
from tests.engine.models.rewriting import (
    assert_holds,
    stored_tensors,
    text_logits,
    write_other,
)
from tests.engine.models.serving import load, write_tiny
from tests.engine.tiny_models import write_model
from tests.engine.weights.rooms import CPU, given, room_of, update
from tests.sampling.ranks import on_ranks


class Models:
    """A served model, and the tensors of another checkpoint."""

    def __init__(self, folder: Path) -> None:
        write_model("qwen3", folder / "old")
        self.folder = folder
        self.model = load(folder / "old")
        self.room = room_of(self.model)
        self.old = stored_tensors(folder / "old")
        self.new = write_other(folder / "old", folder / "new")
        self.before = text_logits(self.model)
        self.wanted = text_logits(load(folder / "new"))

    def assert_old(self) -> None:
        assert torch.equal(text_logits(self.model), self.before)

    def assert_new(self) -> None:
        assert torch.equal(text_logits(self.model), self.wanted)


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


def test_an_update_from_a_folder(models: Models) -> None:
    models.room.run(BeginUpdate())
    models.room.run(ReceiveTensors(source=FolderSource(path=str(models.folder / "new"))))
    models.assert_old()  # until it is finished
    report = models.room.run(FinishUpdate())
    models.assert_new()
    assert isinstance(report, UpdateReport)
    assert report.num_tensors == len(models.new)
    assert report.num_bytes == sum(tensor.nbytes for tensor in models.new.values())


@pytest.mark.parametrize("how", ["cut off", "overwritten"])
def test_files_that_are_written_before_the_end_are_refused(how: str, models: Models) -> None:
    """Numbers that were checked are not those that would be served."""
    path = models.folder / "new" / "model.safetensors"
    models.room.run(BeginUpdate(check=True))
    models.room.run(ReceiveTensors(source=FolderSource(path=str(path.parent))))
    if how == "cut off":
        os.truncate(path, path.stat().st_size // 2)
    else:
        broken = {name: torch.full_like(each, torch.nan) for name, each in models.new.items()}
        raw = save(broken, {"format": "pt"})
        assert len(raw) == path.stat().st_size
        path.write_bytes(raw)
    with pytest.raises(WeightUpdateError, match=r"model\.safetensors was written") as caught:
        models.room.run(FinishUpdate())
    assert caught.value.code == "bad_source"
    models.assert_old()
    update(models.room, given(models.new))
    models.assert_new()


def test_an_update_of_a_few_tensors_and_in_several_messages(models: Models) -> None:
    names = sorted(models.new)
    update(models.room, given({names[3]: models.new[names[3]]}))
    held = dict(models.old) | {names[3]: models.new[names[3]]}
    assert_holds(models.model.named_weights(), held)
    halves = [{name: models.new[name] for name in names[start::2]} for start in (0, 1)]
    update(models.room, *map(given, halves))
    models.assert_new()


def test_tensors_in_another_type_are_rounded(models: Models) -> None:
    update(models.room, given({name: each.bfloat16() for name, each in models.new.items()}))
    rounded = {name: each.bfloat16().float() for name, each in models.new.items()}
    assert_holds(models.model.named_weights(), rounded)


@pytest.mark.parametrize(
    ("name", "tensor", "code", "words"),
    [
        ("model.norm.weigth", torch.zeros(32), "unknown_weight", "nearest is 'model.norm.weight'"),
        ("model.norm.weight", torch.zeros(33), "wrong_shape", r"\[33\], the model's has \[32\]"),
        ("model.norm.weight", torch.zeros(32, dtype=torch.int8), "wrong_dtype", "is int8"),
        ("model.norm.weight", torch.full((32,), torch.nan), "not_finite", "not finite"),
    ],
)
def test_a_wrong_tensor_ends_the_update(
    name: str, tensor: torch.Tensor, code: str, words: str, models: Models
) -> None:
    """The old weights are served, also those of tensors that came before it."""
    models.room.run(BeginUpdate(check=True))
    models.room.run(given({"lm_head.weight": models.new["lm_head.weight"]}))
    with pytest.raises(WeightUpdateError, match=words) as error:
        models.room.run(given({name: tensor}))
    assert error.value.code == code
    models.assert_old()
    with pytest.raises(WeightUpdateError, match="no update was begun"):
        models.room.run(FinishUpdate())
    update(models.room, given(models.new))
    models.assert_new()


def test_numbers_that_are_not_finite_are_written_where_nobody_checks(models: Models) -> None:
    update(models.room, given({"model.norm.weight": torch.full((32,), torch.nan)}))
    assert text_logits(models.model).isnan().all()


@pytest.mark.parametrize("options", [{}, {"quantization": "fp8"}])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.down_proj.weight"])
def test_numbers_are_checked_as_they_are_written(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A type of fewer exponents has infinities in place of some."""
    write_model("qwen3", tmp_path)
    config = ModelConfig(model=str(tmp_path), dtype="float16", **options)
    model = load_model(config, CPU)
    room = room_of(model)
    old = model.named_weights()[name].read()
    most = torch.full(old.shape, 65504.0)
    with pytest.raises(WeightUpdateError, match=f"{name}.*not finite as float16") as error:
        update(room, given({name: most * 2}), check=True)
    assert error.value.code == "not_finite"
    assert torch.equal(model.named_weights()[name].read(), old)
    update(room, given({name: most}), check=True)


def test_bytes_that_are_not_the_tensor(models: Models) -> None:
    models.room.run(BeginUpdate())
    tensor = TensorBytes("model.norm.weight", "float32", (32,), b"\0" * 127)
    with pytest.raises(WeightUpdateError, match=r"127 bytes.*are 128"):
        models.room.run(ReceiveTensors(source=GivenSource(tensors=(tensor,))))


@pytest.mark.parametrize("path", ["nowhere", "empty"])
def test_a_folder_without_weights(path: str, models: Models) -> None:
    (models.folder / "empty").mkdir()
    models.room.run(BeginUpdate())
    with pytest.raises(WeightUpdateError, match=r"no folder|no weights") as error:
        models.room.run(ReceiveTensors(source=FolderSource(path=str(models.folder / path))))
    assert error.value.code == "bad_source"


def test_updates_begin_and_end_in_turn(models: Models) -> None:
    for command in (FinishUpdate(), given({})):
        with pytest.raises(WeightUpdateError) as error:
            models.room.run(command)
        assert error.value.code == "no_update"
    models.room.run(BeginUpdate())
    with pytest.raises(WeightUpdateError) as error:
        models.room.run(BeginUpdate())
    assert error.value.code == "update_in_progress"
    models.room.run(given(models.new))
    models.room.run(AbandonUpdate())
    models.assert_old()
    models.room.run(SetVersion(version="7"))
    models.assert_old()


def test_a_part_joins_no_update_that_takes_none(models: Models) -> None:
    """The update that it would disturb goes on."""
    part = replace(given(models.old), is_part=True)
    with pytest.raises(WeightUpdateError, match="no update was begun"):
        models.room.run(part)
    models.room.run(BeginUpdate())
    with pytest.raises(WeightUpdateError, match="in the middle of another") as error:
        models.room.run(part)
    assert error.value.code == "update_in_progress"
    models.room.run(given(models.new))
    models.room.run(FinishUpdate())
    models.assert_new()
    models.room.run(BeginUpdate(takes_parts=True))
    models.room.run(part)
    models.room.run(FinishUpdate(of_parts=True))
    models.assert_old()


@pytest.mark.parametrize("takes_parts", [False, True])
def test_an_update_is_finished_as_it_was_begun(takes_parts: bool, models: Models) -> None:
    """What would finish one of the other kind is refused, and it goes on."""
    models.room.run(BeginUpdate(takes_parts=takes_parts))
    models.room.run(replace(given(models.new), is_part=takes_parts))
    with pytest.raises(WeightUpdateError, match="another kind") as error:
        models.room.run(FinishUpdate(of_parts=not takes_parts))
    assert error.value.code == "no_update"
    models.assert_old()
    models.room.run(FinishUpdate(of_parts=takes_parts))
    models.assert_new()


def test_an_update_must_have_tensors(models: Models) -> None:
    """One of its parts need not, nor must the model load what it has."""
    for parts in ((), (given({}),)):
        with pytest.raises(WeightUpdateError, match="update has no tensors") as error:
            update(models.room, *parts)
        assert error.value.code == "no_tensors"
        models.assert_old()
    passed_over = given({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    assert update(models.room, passed_over).num_weights == 0
    models.assert_old()
    update(models.room, given({}), given(models.new), passed_over, given({}))
    models.assert_new()


def test_weights_that_were_let_go_are_lacking_until_each_is_written(models: Models) -> None:
    """Those of an update that is repeated are not counted twice."""
    names = sorted(models.new)
    first, others = ({name: models.new[name] for name in part} for part in (names[:2], names[2:]))
    assert update(models.room, given(first)).num_lacking == 0
    models.room.run(LetWeightsGo())
    for _ in names:
        assert update(models.room, given(first)).num_lacking == len(others)
    assert update(models.room, given(others)).num_lacking == 0
    models.assert_new()


def test_names_that_a_drafter_shares_with_the_model_are_kept_apart(models: Models) -> None:
    """EAGLE-3 heads have a `lm_head.weight`, and draft models may have all names of the target."""
    draft = load(models.folder / "old")
    room = RankWeights(models.model.named_weights(), draft.named_weights(), CPU, LoneRank())
    assert not update(room, given(models.new)).has_draft
    models.assert_new()
    room.run(LetWeightsGo())
    report = update(room, given(models.new), target="draft")
    assert report.has_draft
    assert report.num_lacking == len(models.new), "the model's were not written"
    assert torch.equal(text_logits(draft), models.wanted)
    assert update(room, given(models.new)).num_lacking == 0


def test_a_write_that_fails_midway_ends_the_engine(models: Models) -> None:
    """Nobody serves a mixture."""
    unit = models.model.named_weights()["model.norm.weight"].unit

    def fail(*_: object) -> None:
        raise RuntimeError("the device is lost")

    unit.put = fail
    models.room.run(BeginUpdate())
    models.room.run(given(models.new))
    with pytest.raises(RunnerLostError, match="in part: RuntimeError: the device is lost"):
        models.room.run(FinishUpdate())


def test_weights_are_listed_and_read(models: Models) -> None:
    listed = models.room.run(ListWeights(checksums=True))
    assert isinstance(listed, WeightList)
    assert [entry.name for entry in listed.weights] == sorted(models.old)
    assert {entry.dtype for entry in listed.weights} == {"float32"}
    update(models.room, given(models.new))
    again = models.room.run(ListWeights(checksums=True))
    assert isinstance(again, WeightList)
    same = [a.name for a, b in zip(listed.weights, again.weights, strict=True) if a == b]
    assert not same
    values = models.room.run(ReadWeight(name="model.embed_tokens.weight", truncate=2))
    assert isinstance(values, WeightValues)
    assert values.shape == (97, 32)
    assert values.values == tuple(models.new["model.embed_tokens.weight"][:2].flatten().tolist())
    with pytest.raises(WeightUpdateError, match="no weight 'x'"):
        models.room.run(ReadWeight(name="x"))


def test_ranks_refuse_together_and_write_together(tmp_path: Path) -> None:
    write_tiny(DIVIDED["qwen3-moe"], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    broken = tmp_path / "broken"
    broken.mkdir()
    save_file(
        load_file(tmp_path / "new" / "model.safetensors") | {"model.norm.weight": torch.zeros(3)},
        broken / "model.safetensors",
    )

    def load_part(exchange: RankExchange, folder: str) -> CausalLM:
        return load_model(ModelConfig(model=str(tmp_path / folder)), CPU, exchange)

    def work(exchange: RankExchange) -> torch.Tensor:
        model = load_part(exchange, "old")
        before, room = text_logits(model), room_of(model, exchange)
        room.run(BeginUpdate())
        # Only rank 1 sees a folder that is broken.
        path = broken if exchange.rank == 1 else tmp_path / "new"
        with pytest.raises(WeightUpdateError, match=r"'model.norm.weight' has shape") as error:
            room.run(ReceiveTensors(source=FolderSource(path=str(path))))
        assert error.value.code == "wrong_shape"
        assert torch.equal(text_logits(model), before)
        update(room, ReceiveTensors(source=FolderSource(path=str(tmp_path / "new"))))
        assert_holds(model.named_weights(), new)
        return text_logits(model)

    wanted = on_ranks(2, lambda exchange: text_logits(load_part(exchange, "new")))
    for got, own in zip(on_ranks(2, work), wanted, strict=True):
        assert torch.equal(got, own)
