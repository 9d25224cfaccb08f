from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest

from engine.errors import ModelError
from engine.models.weights.folder import eos_token_ids, model_folder, read_json


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert model_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./nowhere", "a/b/c"])
def test_a_path_is_not_asked_of_the_hub(model: str) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        model_folder(model)


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError("no route to the hub\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"'some/model' is neither a folder .*: no route") as error:
        model_folder("some/model")
    assert "\n" not in str(error.value)


def test_the_hub_is_asked_for_weights_only_if_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def fetch(model: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((model, revision, "*.safetensors" in allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert model_folder("some/model", "v1") == tmp_path
    model_folder("some/model", weights=False)
    assert asked == [("some/model", "v1", True), ("some/model", None, False)]


def test_json_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not readable JSON"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="must hold a JSON object"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("config", "generation", "wanted"),
    [
        ({}, None, ()),
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": [2, 5]}, {"eos_token_id": [5, 7]}, (2, 5, 7)),
        ({"eos_token_id": None}, {"eos_token_id": 3}, (3,)),
        ({"text_config": {"eos_token_id": 4}}, {}, (4,)),
    ],
)
def test_eos_token_ids(
    config: dict[str, object],
    generation: dict[str, object] | None,
    wanted: tuple[int, ...],
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_token_ids(tmp_path) == wanted
