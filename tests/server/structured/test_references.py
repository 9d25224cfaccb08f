"""References of a schema into itself."""

from __future__ import annotations

from typing import Any

import pytest

from server.structured.references import target

SCHEMA: dict[str, Any] = {"$defs": {"a/b~": {"anyOf": [True, {"type": "null"}]}}}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", SCHEMA),
        ("#/$defs/a~1b~0/anyOf/1", {"type": "null"}),
        ("#/$defs/a~1b~0/anyOf/2", None),
        ("#/$defs/a~1b~0/anyOf/x", None),
        ("#/$defs/none", None),
        ("#anchor", None),
        ("http://example.com/schema#/$defs", None),
    ],
)
def test_what_a_reference_names(reference: str, found: Any) -> None:
    assert target(SCHEMA, reference) == found
