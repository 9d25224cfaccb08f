"""Names of models and adapters: those that are served, and those that are not."""

from __future__ import annotations

import pytest

from engine.contracts.adapters import NamedAdapter
from engine.contracts.control import EngineState
from server.config import ServerConfig
from server.errors import ApiError
from server.schema.model_name import adapter_of, check_model

CONFIG = ServerConfig(model_names=("m", "other"))
STATE = EngineState(adapters=(NamedAdapter("sql", "/adapters/sql", 1, ""),))


@pytest.mark.parametrize("name", [None, "m", "other", "sql"])
def test_names_that_are_served(name: str | None) -> None:
    assert check_model(name, CONFIG, STATE) == name or name is None
    assert adapter_of(name, CONFIG) == ("sql" if name == "sql" else "")


@pytest.mark.parametrize("name", ["", "M", "m/"])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(ApiError, match="served here: m, other, sql") as caught:
        check_model(name, CONFIG, STATE)
    assert (caught.value.status, caught.value.param) == (404, "model")
