"""The model that engines with drafters serve, and the table by which they draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.runner.table_drafter import draft_from
from tests.engine.tiny_models import VOCAB, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model("llama", folder)
    return folder


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The drafter's, in which a test may write what it wants accepted."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn((VOCAB, VOCAB), generator=generator)
    draft_from(table, monkeypatch)
    return table
