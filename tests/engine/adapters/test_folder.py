from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.adapters.folder import AdapterTensors, read_adapter
from engine.adapters.stacks import AdapterStacks
from engine.adapters.targets import AdapterTargets
from engine.contracts.adapters import AdapterSource
from engine.errors import AdapterError
from engine.models.formats.projections import Projection
from engine.models.weights.shares import RankShare, undivided
from tests.engine.adapters.peft import linear_modules, source_of, write_adapter
from tests.engine.tiny_models import write_model

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return write_model("llama", tmp_path_factory.mktemp("base"))


def read(base: PreTrainedModel, folder: Path, **options: Any) -> AdapterTensors:
    write_adapter(base, folder, **options)
    return read_adapter(source_of(folder), max_rank=16)


def refusal(base: PreTrainedModel, folder: Path, **options: Any) -> str:
    with pytest.raises(AdapterError) as error:
        read(base, folder, **options)
    return str(error.value)


def targets_of(base: PreTrainedModel) -> AdapterTargets:
    stacks = AdapterStacks(1, 16)
    for name, module in linear_modules(base).items():
        outputs = (undivided(module.out_features),)
        stacks.add([Projection(name, outputs)], undivided(module.in_features))
    return stacks.targets


@pytest.mark.parametrize(
    "targets",
    [
        ["q_proj", "v_proj"],
        ["self_attn.q_proj", "self_attn.v_proj"],
        r".*\.self_attn\.(q|v)_proj",
        "all-linear",
    ],
)
def test_spellings_of_targets(base: PreTrainedModel, tmp_path: Path, targets: Any) -> None:
    own: dict[str, Any] = {"is_wanted": lambda name: name.endswith(("q_proj", "v_proj"))}
    adapter = read(base, tmp_path, target_modules=targets, **own)
    assert len(adapter.modules) == 2 * base.config.num_hidden_layers
    found = targets_of(base).fit(adapter)
    assert {target.name for target, _ in found} == set(adapter.modules)


def test_scales_and_patterns(base: PreTrainedModel, tmp_path: Path) -> None:
    plain = read(base, tmp_path / "a", rank=4, lora_alpha=6).modules[Q]
    assert plain.scale == 1.5
    stabilized = read(base, tmp_path / "b", rank=4, lora_alpha=6, use_rslora=True).modules[Q]
    assert stabilized.scale == 3.0
    patterns: dict[str, Any] = {
        "ranks": {"q_proj": 2, "o_proj": 9},
        "alpha_pattern": {"q_proj": 10},
    }
    modules = read(base, tmp_path / "c", rank=4, lora_alpha=6, **patterns).modules
    assert modules[Q].scale == 5.0
    assert modules[Q].a.shape[0] == 2
    o = modules[Q.replace("q_proj", "o_proj")]
    assert (o.scale, o.b.shape[1]) == (6 / 9, 9)
    both = read(base, tmp_path / "d", use_rslora=True, lora_alpha=6, **patterns).modules
    assert both[Q].scale == 10 / math.sqrt(2)


def test_patterns_are_of_a_parameter_s_whole_name(base: PreTrainedModel, tmp_path: Path) -> None:
    """As PEFT matches them: the module's name alone is not the end of its weight's."""
    adapter = read(
        base,
        tmp_path,
        rank=4,
        is_wanted=lambda name: name.endswith("q_proj"),
        target_modules=None,
        target_parameters=["q_proj.weight"],
        rank_pattern={"q_proj": 9},
        alpha_pattern={"q_proj": 3, "q_proj.weight": 10},
    )
    assert adapter.modules[Q].a.shape[0] == 4
    assert adapter.modules[Q].scale == 2.5


def test_names_of_older_and_larger_models(base: PreTrainedModel, tmp_path: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            new = name.replace("base_model.model.model.", "base_model.model.model.language_model.")
            tensors[new.replace(".weight", ".default.weight")] = tensors.pop(name)

    adapter = read(base, tmp_path, change=rename)
    targets = targets_of(base)
    assert {target.name for target, _ in targets.fit(adapter)} == set(targets.modules)


@pytest.mark.parametrize("inner", [("down",), ("down", "up"), ("one.down", "two.down")])
def test_modules_that_a_library_nests_otherwise(
    base: PreTrainedModel, tmp_path: Path, inner: tuple[str, ...]
) -> None:
    """One is found by its last name where its mixer has no other of that name."""

    def nest(tensors: dict[str, torch.Tensor]) -> None:
        a, b = (tensors[f"base_model.model.{Q}.lora_{half}.weight"] for half in "AB")
        tensors.clear()
        name = "base_model.model.model.layers.0.mixer.inner.down"
        tensors.update({f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b})

    adapter = read(base, tmp_path, change=nest, target_modules=["down"])
    stacks = AdapterStacks(1, 16)
    for name in inner:
        projection = Projection(f"model.layers.0.mixer.{name}", (undivided(32),))
        stacks.add([projection], undivided(32))
    if inner[0] == "down":
        assert [target.name for target, _ in stacks.targets.fit(adapter)] == [
            "model.layers.0.mixer.down"
        ]
        return
    with pytest.raises(AdapterError, match=r"no module 'model\.layers\.0\.mixer\.inner\.down'"):
        stacks.targets.fit(adapter)


def test_joined_modules_are_taken_apart(base: PreTrainedModel, tmp_path: Path) -> None:
    shapes = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    a, b = torch.randn(4, 32), torch.randn(sum(shapes.values()), 4)
    joined = Q.replace("q_proj", "qkv_proj")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.clear()
        for half, tensor in (("A", a), ("B", b)):
            tensors[f"base_model.model.{joined}.lora_{half}.weight"] = tensor

    adapter = read(base, tmp_path, change=change, target_modules=["qkv_proj"])
    fitted = targets_of(base).fit(adapter)
    found = {target.name.rpartition(".")[2]: own for target, own in fitted}
    assert list(found) == list(shapes)
    assert torch.equal(torch.cat([own.b for own in found.values()]), b)
    assert all(torch.equal(own.a, a) for own in found.values())


def test_a_rank_has_its_parts(base: PreTrainedModel, tmp_path: Path) -> None:
    factors = read(base, tmp_path).modules[Q]
    order = torch.tensor([1, 0, 2, 3])
    outputs = (RankShare(4, 2, 16), RankShare(8, 2, 16))
    stacks = AdapterStacks(1, 16)
    stacks.add([Projection(Q, outputs, order=order)], RankShare(8, 16, 32))
    target = stacks.targets.modules[Q]
    own = target.own(factors)
    assert torch.equal(own.a, factors.a[:, 8:24])
    assert torch.equal(own.b, factors.b[[5, 4, 24, 25]])


def test_a_digest_is_of_all_of_it(base: PreTrainedModel, tmp_path: Path) -> None:
    first = read(base, tmp_path / "a").digest
    assert read(base, tmp_path / "b").digest == first
    assert read(base, tmp_path / "c", seed=1).digest != first
    assert read(base, tmp_path / "d", lora_alpha=3).digest != first


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"use_dora": True}, "use_dora (DoRA)"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias 'all'"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters names"),
        ({"target_parameters": "mlp.experts.down_proj"}, "target_parameters must be"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
        ({"r": 0}, "r must be"),
        ({"lora_alpha": math.inf}, "lora_alpha must be"),
        ({"target_modules": None}, "target_modules is missing"),
        ({"target_modules": "(["}, "no expression"),
        ({"target_modules": ["q_proj"]}, "which target_modules"),
        ({"exclude_modules": ["q_proj"]}, "which target_modules"),
        (
            {"target_modules": ["q_proj", "x_proj"], "is_wanted": lambda n: "q_proj" in n},
            "'x_proj'",
        ),
    ],
)
def test_refusals_of_a_config(
    base: PreTrainedModel, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    assert says in refusal(base, tmp_path, **fields)


def test_refusals_of_tensors(base: PreTrainedModel, tmp_path: Path) -> None:
    def lose(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"base_model.model.{Q}.lora_B.weight"]

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"base_model.model.{Q}.lora_A.weight"][0, 0] = float("nan")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"base_model.model.{Q}.lora_magnitude_vector"] = torch.ones(4)

    def embed(tensors: dict[str, torch.Tensor]) -> None:
        tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.ones(4, 97)

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for half in ("A", "B"):
            tensor = tensors[f"base_model.model.{Q}.lora_{half}.weight"].clone()
            tensors[f"base_model.model.{Q}.base_layer.lora_{half}.weight"] = tensor

    says = {
        "no lora_B": refusal(base, tmp_path / "a", change=lose),
        "not finite": refusal(base, tmp_path / "b", change=spoil),
        "lora_magnitude_vector": refusal(base, tmp_path / "c", change=add),
        "no lora_embedding_B": refusal(
            base, tmp_path / "d", change=embed, target_modules="all-linear"
        ),
        "tensors of 2 parameters": refusal(base, tmp_path / "g", change=wrap),
        "its rank is 5": refusal(base, tmp_path / "e", rank_pattern={"q_proj": 5}),
        "--max-lora-rank 17": refusal(base, tmp_path / "f", rank=17),
    }
    for words, message in says.items():
        assert words in message


def test_an_adapter_of_another_base_is_refused(base: PreTrainedModel, tmp_path: Path) -> None:
    adapter, targets = read(base, tmp_path), targets_of(base)
    targets.modules[Q] = targets.modules[Q]._replace(shape=(64, 32))
    with pytest.raises(AdapterError, match=r"\[32, 32\].*\[64, 32\]"):
        targets.fit(adapter)
    del targets.modules[Q]
    with pytest.raises(
        AdapterError, match=r"the base has no module 'model\.layers\.0\.self_attn\.q_p"
    ):
        targets.fit(adapter)


def test_a_given_adapter_is_that_of_its_files(base: PreTrainedModel, tmp_path: Path) -> None:
    adapter = read(base, tmp_path)
    config, tensors = (
        (tmp_path / name).read_bytes()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    )
    given = read_adapter(AdapterSource("step", config, tensors), 16)
    assert given.digest == adapter.digest
    assert given.modules.keys() == adapter.modules.keys()
    with pytest.raises(AdapterError, match=r"step/adapter_model\.safetensors is not readable"):
        read_adapter(AdapterSource("step", config, b"no"), 16)


def test_unreadable_folders(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"

    def refusal_of_folder() -> str:
        with pytest.raises(AdapterError) as error:
            read_adapter(source_of(folder), 16)
        return str(error.value)

    assert "is not a folder" in refusal_of_folder()
    folder.mkdir()
    assert "has no adapter_config.json" in refusal_of_folder()
    config.write_text("{")
    assert "not readable JSON" in refusal_of_folder()
    config.write_text("[]")
    assert "must hold a JSON object" in refusal_of_folder()
    config.write_text(json.dumps({"target_modules": ["q_proj"]}))
    assert "has neither" in refusal_of_folder()
    weights.write_bytes(b"no")
    assert "not readable: " in refusal_of_folder()
