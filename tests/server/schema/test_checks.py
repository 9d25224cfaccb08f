"""Fields checked against what this server was told to serve."""

from __future__ import annotations

import pytest

from engine.contracts.adapters import NamedAdapter
from engine.contracts.control import EngineState
from server.config import ServerConfig
from server.errors import ApiError
from server.schema.checks import adapter_of, check_model, check_priority

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


def test_a_priority_needs_its_policy() -> None:
    for priority in (None, 0):
        check_priority(priority, CONFIG)
    with pytest.raises(ApiError, match="got -1") as caught:
        check_priority(-1, CONFIG)
    assert (caught.value.status, caught.value.param) == (400, "priority")
    check_priority(-1, ServerConfig(model_names=("m",), priority_scheduling=True))
