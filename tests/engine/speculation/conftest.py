"""The target that drafters are checked with."""

from __future__ import annotations

import pytest

from tests.engine.speculation.target_of_heads import TargetFolder, write_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    folder = tmp_path_factory.mktemp("target")
    return folder, write_target(folder)
