"""The table of models is that of the tests, and a model outside it is said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server import cli
from server.command.listing import served_models
from tests.engine.models.families import listing


def test_the_table_is_of_what_tests_check() -> None:
    """Where this fails: python -m tests.engine.models.families.listing."""
    rows = listing.rows()
    assert served_models() == rows
    found = listing.BETWEEN.search(listing.PAGE.read_text())
    assert found is not None
    assert found[0] == found[1] + listing.page_table(rows) + found[2]


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if line.startswith("nemotron_h "))
    assert "Mamba 2" in line
    assert cli.main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == served_models()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "qwen3 runs on our own layers"),
        ({"hidden_act": "relu"}, "not on our own layers: hidden_act 'relu'"),
        ({"architectures": ["Strange"]}, "not on our own layers: architecture Strange"),
    ],
)
def test_what_runs_a_model_is_said(
    fields: dict[str, object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]} | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["models", str(tmp_path)]) == 0
    assert words in capsys.readouterr().out


def test_a_model_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
