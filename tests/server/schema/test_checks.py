"""Fields checked against what this server was told to serve."""

from __future__ import annotations

import pytest

from server.config import ServerConfig
from server.errors import ApiError
from server.schema.checks import check_model, check_priority

CONFIG = ServerConfig(model_names=("m", "other"))


@pytest.mark.parametrize("name", [None, "m", "other"])
def test_names_that_are_served(name: str | None) -> None:
    check_model(name, CONFIG)


@pytest.mark.parametrize("name", ["", "M", "m/"])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(ApiError, match="served here: m, other") as caught:
        check_model(name, CONFIG)
    assert (caught.value.status, caught.value.param) == (404, "model")


def test_a_priority_needs_its_policy() -> None:
    for priority in (None, 0):
        check_priority(priority, CONFIG)
    with pytest.raises(ApiError, match="got -1") as caught:
        check_priority(-1, CONFIG)
    assert (caught.value.status, caught.value.param) == (400, "priority")
    check_priority(-1, ServerConfig(model_names=("m",), priority_scheduling=True))
