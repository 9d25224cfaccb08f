"""EAGLE heads and draft models that do not fit are refused by their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.loader import load_model
from engine.speculative_config import Method
from tests.engine.speculation.target_of_heads import load_drafter
from tests.engine.speculation.tiny_heads import write_eagle1, write_eagle3
from tests.engine.tiny_models import VOCAB, write_model

DEVICE = torch.device("cpu")
LAYERS: dict[str, Any] = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 0]}}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_model("llama", folder)
    return folder


@pytest.mark.parametrize(
    ("method", "config", "expected"),
    [
        ("eagle", {"hidden_size": 64}, "hidden size is 64, the target's 32"),
        ("eagle", {"vocab_size": 96}, "vocabulary is 96, the target's 97"),
        ("eagle", {"num_hidden_layers": 2}, "num_hidden_layers 2, not 1"),
        ("eagle", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("eagle", {"model_type": "gpt2"}, "heads of model_type 'gpt2'"),
        ("eagle", {"intermediate_size": 40}, "has shape [48, 32], the config asks for [40, 32]"),
        ("eagle3", {}, "reads layers [1, 0, -2], the target has 2"),
        ("eagle3", LAYERS | {"norm_before_residual": True}, "norm_before_residual true"),
        (
            "eagle3",
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}},
            "features of size 96, those of 2 layers of the target have 64",
        ),
        ("eagle3", LAYERS | {"draft_vocab_size": 5}, "has shape [9], the config asks for [5]"),
    ],
)
def test_a_head_that_does_not_fit(
    target_folder: Path, tmp_path: Path, method: Method, config: dict[str, Any], expected: str
) -> None:
    if method == "eagle":
        write_eagle1(tmp_path, bias=False, **config)
    else:
        write_eagle3(tmp_path, draft_ids=list(range(0, 90, 10)), **config)
    with pytest.raises(ModelError) as raised:
        load_drafter(target_folder, tmp_path, method)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("offset", [VOCAB, -1, 1])
def test_a_mapping_that_leaves_the_vocabulary_or_repeats(
    target_folder: Path, tmp_path: Path, offset: int
) -> None:
    tensors = write_eagle3(tmp_path, draft_ids=list(range(9)), **LAYERS)
    tensors["d2t"][0] = offset
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="must map the 9 draft tokens to different ones"):
        load_drafter(target_folder, tmp_path, "eagle3")


def test_eagle3_over_transformers_modules_is_refused(tmp_path: Path) -> None:
    write_model("gpt2", tmp_path / "target")
    write_eagle3(tmp_path / "head", draft_ids=None, **LAYERS)
    with pytest.raises(ModelError, match="on transformers' modules does not give"):
        load_drafter(tmp_path / "target", tmp_path / "head", "eagle3")


def test_eagle_over_transformers_modules(tmp_path: Path) -> None:
    write_model("gpt2", tmp_path / "target")
    write_eagle1(tmp_path / "head", bias=False)
    assert load_drafter(tmp_path / "target", tmp_path / "head", "eagle").draft_logits is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"vocab_size": 96}, "vocabulary is 96, the target's 97"),
        ({"max_position": 40}, "made for 40 positions, --max-model-len is 64"),
    ],
)
def test_a_draft_model_that_does_not_fit(
    target_folder: Path, sizes: dict[str, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_model(ModelConfig(model=str(target_folder), device="cpu"), DEVICE)
    draft = load_model(ModelConfig(model=str(target_folder), device="cpu"), DEVICE)
    for name, size in sizes.items():
        setattr(draft, name, size)
    monkeypatch.setattr("engine.speculation.make_drafter.load_model", lambda *_: draft)
    with pytest.raises(ModelError, match=expected):
        load_drafter(target_folder, target_folder, "draft_model", target)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_random_heads_need_a_config_alone(
    target_folder: Path, tmp_path: Path, method: Method
) -> None:
    if method == "eagle":
        write_eagle1(tmp_path, bias=False)
    else:
        write_eagle3(tmp_path, draft_ids=list(range(9)), **LAYERS)
    (tmp_path / "model.safetensors").unlink()
    drafter = load_drafter(target_folder, tmp_path, method, load_format="dummy")
    assert len(drafter.attention_specs) == 1


def test_the_shipped_head_fits_the_shipped_model() -> None:
    load_drafter(MODEL_FOLDER, EAGLE_FOLDER, "eagle")
    tensors = load_file(EAGLE_FOLDER / "model.safetensors")
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    assert sum(path.stat().st_size for path in EAGLE_FOLDER.iterdir()) < 3_000_000
