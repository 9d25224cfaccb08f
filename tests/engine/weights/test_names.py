"""Names of trainers: joined or apart, experts in one tensor, tied heads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from engine.contracts.named_weights import NamedWeights, TensorInfo, WeightError
from engine.contracts.weights import LetWeightsGo, WeightUpdateError
from engine.weights.names import NameMap
from tests.engine.models.rewriting import Tensors, assert_holds, lose, text_logits, write_other
from tests.engine.models.serving import GROUPED, load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.engine.weights.rooms import given, room_of, update


def joined(tensors: Tensors, stem: str, parts: tuple[str, ...], name: str) -> Tensors:
    """Tensors with some of them in one."""
    rest = dict(tensors)
    own = [rest.pop(f"{stem}.{part}.weight") for part in parts]
    return rest | {f"{stem}.{name}.weight": torch.cat(own)}


def test_a_joined_tensor_of_weights_that_are_apart(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    sent = new
    for layer in range(2):
        stem = f"model.layers.{layer}"
        sent = joined(sent, f"{stem}.self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj")
        sent = joined(sent, f"{stem}.mlp", ("gate_proj", "up_proj"), "gate_up_proj")
    model = load(tmp_path / "old")
    update(room_of(model), given(sent))
    assert_holds(model.named_weights(), new)
    assert torch.equal(text_logits(model), text_logits(load(tmp_path / "new")))


def apart(tensors: Tensors) -> Tensors:
    """Tensors of Phi-3 with those apart that it has joined."""
    sent: Tensors = {}
    for name, tensor in tensors.items():
        if "qkv_proj" in name:
            parts = torch.split(tensor, [32, 16, 16])
            names = ("q_proj", "k_proj", "v_proj")
            sent |= {name.replace("qkv_proj", n): p for n, p in zip(names, parts, strict=True)}
        elif "gate_up_proj" in name:
            gate, up = tensor.chunk(2)
            sent[name.replace("gate_up_proj", "gate_proj")] = gate
            sent[name.replace("gate_up_proj", "up_proj")] = up
        else:
            sent[name] = tensor
    return sent


def test_tensors_that_a_checkpoint_has_joined(tmp_path: Path) -> None:
    """Some rows of a joined weight alone, too: the others stay."""
    write_tiny(hf.Phi3Config(**GROUPED), tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    sent = apart(new)
    model = load(tmp_path / "old")
    room = room_of(model)
    keys = {name: tensor for name, tensor in sent.items() if ".k_proj." in name}
    update(room, given(keys))
    held = model.named_weights()["model.layers.1.self_attn.qkv_proj.weight"].read()
    assert torch.equal(held[32:48], sent["model.layers.1.self_attn.k_proj.weight"])
    assert not torch.equal(held, new["model.layers.1.self_attn.qkv_proj.weight"])
    update(room, given(sent))
    assert_holds(model.named_weights(), new)


def test_a_joined_weight_is_lacking_until_all_of_its_rows_are_written(tmp_path: Path) -> None:
    """Its parts come in any order, in several updates and more than once."""
    write_tiny(hf.Phi3Config(**GROUPED), tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    sent = apart(new)
    model = load(tmp_path / "old")
    room = room_of(model)
    room.run(LetWeightsGo())
    lose(model.named_weights())
    parts = ("k_proj", "gate_proj", "q_proj", "v_proj", "up_proj")
    whole = {name: tensor for name, tensor in sent.items() if not any(p in name for p in parts)}
    num_joined = sum("qkv_proj" in name or "gate_up_proj" in name for name in new)
    assert update(room, given(whole)).num_lacking == num_joined == 4
    for part, num_lacking in zip(parts, (4, 4, 4, 2, 0), strict=True):
        own = {name: tensor for name, tensor in sent.items() if part in name}
        assert update(room, given(own)).num_lacking == num_lacking, part
        assert update(room, given(own)).num_lacking == num_lacking, part
    assert_holds(model.named_weights(), new)
    room.run(LetWeightsGo())
    joined_alone = {name: tensor for name, tensor in new.items() if "qkv_proj" in name}
    keys = {name: tensor for name, tensor in sent.items() if "k_proj" in name}
    assert update(room, given(joined_alone | keys)).num_lacking == len(new) - len(joined_alone)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_all_experts_in_one_tensor(name: str, tmp_path: Path) -> None:
    """As transformers 5 has them in memory, where checkpoints have modules of each."""
    write_tiny(MODELS[name], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    module: Any = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    sent = {key: tensor.data for key, tensor in module.named_parameters()}
    assert any(key.endswith("experts.gate_up_proj") for key in sent)
    model = load(tmp_path / "old")
    router = "block_sparse_moe.gate" if name == "mixtral" else "mlp.gate"
    sent = {key.replace("mlp.gate.", f"{router}."): tensor for key, tensor in sent.items()}
    update(room_of(model), given(sent))
    assert_holds(model.named_weights(), new)


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("self_attn.q_proj", 64),
        ("self_attn.q_proj", 66),
        ("self_attn.q_proj", 33),
        ("self_attn.k_proj", 32),
        ("self_attn.v_proj", 66),
        ("self_attn.k_proj", 0),
        ("mlp.gate_proj", 47),
        ("mlp.up_proj", 49),
        ("mlp.up_proj", 96),
    ],
)
def test_parts_of_a_joined_weight_have_rows_that_go_with_others(
    part: str, rows: int, tmp_path: Path
) -> None:
    """Of 64 rows of attention keys and values have as many; gate and up have 48 each."""
    write_tiny(hf.Phi3Config(**GROUPED), tmp_path)
    names = NameMap(load(tmp_path).named_weights())
    with pytest.raises(WeightUpdateError, match=rf"{part}.*has {rows} rows") as error:
        names.pieces(f"model.layers.0.{part}.weight", TensorInfo((rows, 32), torch.float32))
    assert error.value.code == "wrong_shape"


@pytest.mark.parametrize("change", [-2, -1, 1])
@pytest.mark.parametrize("part", ["down_proj", "gate_up_proj"])
def test_a_tensor_of_another_number_of_experts_is_refused(
    part: str, change: int, tmp_path: Path
) -> None:
    """Those that it lacks would keep what they hold."""
    write_tiny(MODELS["qwen3-moe"], tmp_path)
    named = load(tmp_path).named_weights()
    place, names = "model.layers.0.mlp.experts", NameMap(named)
    ends = ("down_proj",) if part == "down_proj" else ("gate_proj", "up_proj")
    num_experts = sum(name.startswith(place) and name.endswith("up_proj.weight") for name in named)
    own = [named[f"{place}.0.{end}.weight"].shape for end in ends]
    shape = (num_experts, sum(each[0] for each in own), own[0][1])
    assert len(names.pieces(f"{place}.{part}", TensorInfo(shape, torch.float32))) > 1
    other = TensorInfo((num_experts + change, *shape[1:]), torch.float32)
    words = f"{part}' has {num_experts + change} experts, the model's have {num_experts}"
    with pytest.raises(WeightUpdateError, match=words) as error:
        names.pieces(f"{place}.{part}", other)
    assert error.value.code == "wrong_shape"


def test_a_tied_head_is_the_embeddings(tmp_path: Path) -> None:
    write_tiny(MODELS["llama-tied"], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    model = load(tmp_path / "old")
    room = room_of(model)
    head = new["model.embed_tokens.weight"]
    update(room, given(new | {"lm_head.weight": head}))
    assert_holds(model.named_weights(), new)
    embeddings, own, other = (
        {"model.embed_tokens.weight": head + 1},
        {"lm_head.weight": head},
        {"lm_head.weight": head + 2},
    )
    for parts in ((other,), (new | other,), (other, embeddings), (embeddings, own)):
        with pytest.raises(WeightUpdateError, match="are one in this model, and their numbers dif"):
            update(room, *map(given, parts))
        assert_holds(model.named_weights(), new)
    assert update(room, given(own)).num_weights == 0, "it has those numbers"
    update(room, given({"lm_head.weight": head + 1}), given(embeddings))
    assert_holds(model.named_weights(), new | embeddings)


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_a_tied_head_that_the_checkpoint_has_too(model_impl: str, tmp_path: Path) -> None:
    write_tiny(MODELS["llama-tied"], tmp_path)
    path = tmp_path / "model.safetensors"
    old = load_file(path)
    embeddings = old["model.embed_tokens.weight"]
    save_file(old | {"lm_head.weight": embeddings.clone()}, path, {"format": "pt"})
    model = load(tmp_path, model_impl=model_impl)
    with pytest.raises(WeightUpdateError, match="are one in this model"):
        update(room_of(model), given({"lm_head.weight": embeddings + 1}))
    assert_holds(model.named_weights(), old)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "backbone.embeddings.weight"])
def test_a_tied_head_is_known_where_the_loader_passes_it_over(name: str, tmp_path: Path) -> None:
    write_tiny(MODELS["llama-tied"], tmp_path)
    weight = load(tmp_path).named_weights()["model.embed_tokens.weight"]
    embeddings = replace(weight, name=name, own_name=name)
    names = NameMap(NamedWeights({name: embeddings}, lambda _: True))
    for head in ("lm_head.weight", "language_model.lm_head.weight"):
        assert not names.passes_over(head)
    untied = NameMap(NamedWeights({name: embeddings, "lm_head.weight": embeddings}, lambda _: True))
    assert untied.passes_over("language_model.lm_head.weight")


def test_a_tied_head_is_compared_as_the_server_rounds_it(tmp_path: Path) -> None:
    write_tiny(MODELS["llama-tied"], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")["model.embed_tokens.weight"]
    room = room_of(load(tmp_path / "old", dtype="bfloat16"))
    update(room, given({"model.embed_tokens.weight": new}))
    update(room, given({"lm_head.weight": new}))
    rounded = {"lm_head.weight": new.bfloat16()}
    update(room, given({"model.embed_tokens.weight": new} | rounded))


@pytest.mark.parametrize("options", [{}, {"load_format": "dummy"}])
def test_only_what_the_loader_passes_over_is_passed_over(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Layers beyond the model's, where its config says that they draft."""
    beyond = ("model.layers.2.eh_proj.weight", "model.layers.9.input_layernorm.weight")
    others = ("model.layers.1.zorg", "mtp.norm.weight")
    for kind, num_drafting in (("qwen3", 0), ("deepseek-v3", 0), ("deepseek-v3", 1)):
        folder = tmp_path / f"{kind} {num_drafting}"
        write_tiny(MODELS[kind], folder)
        config = json.loads((folder / "config.json").read_text())
        config["num_nextn_predict_layers"] = num_drafting
        (folder / "config.json").write_text(json.dumps(config))
        room = room_of(load(folder, **options))
        passed = beyond if num_drafting else ()
        for name in (*beyond, *others):
            sent = given({name: torch.zeros(3)})
            if name in passed:
                assert update(room, sent).num_weights == 0
                continue
            with pytest.raises(WeightUpdateError, match=f"has no weight '{name}'"):
                update(room, sent)


def test_shapes_of_joined_tensors_are_checked(tmp_path: Path) -> None:
    write_tiny(MODELS["qwen3"], tmp_path)
    names = NameMap(load(tmp_path).named_weights())
    with pytest.raises(WeightUpdateError, match=r"\[95, 32\], the model's have \[96, 32\] tog"):
        names.pieces("model.layers.0.mlp.gate_up_proj.weight", TensorInfo((95, 32), torch.float32))
    with pytest.raises(WeightError, match=r"has shape \[48, 31\]"):
        names.pieces("model.layers.0.mlp.gate_up_proj.weight", TensorInfo((96, 31), torch.float32))
    with pytest.raises(WeightUpdateError, match=r"has no weight 'nothing'$"):
        names.pieces("nothing", TensorInfo((1,), torch.float32))
