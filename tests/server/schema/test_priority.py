"""A priority is refused where the scheduling policy would ignore it."""

from __future__ import annotations

import pytest

from server.config import ServerConfig
from server.errors import ApiError
from server.schema.priority import check_priority


def test_a_priority_needs_its_policy() -> None:
    for priority in (None, 0):
        check_priority(priority, ServerConfig(model_names=("m",)))
    with pytest.raises(ApiError, match="got -1") as caught:
        check_priority(-1, ServerConfig(model_names=("m",)))
    assert (caught.value.status, caught.value.param) == (400, "priority")
    check_priority(-1, ServerConfig(model_names=("m",), priority_scheduling=True))
