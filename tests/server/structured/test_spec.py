"""What crosses to the process that checks grammars: the same on both sides, up to its limit."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import ApiError
from server.structured.spec import COMPACT, MAX_SPEC_BYTES, GrammarSpec


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ({"type": "object", "properties": {"é": {"const": None}}}, {"lenient": True}),
        (True, {"whitespace": COMPACT}),
        (["a", "b"], {"allows_calls": True}),
    ],
)
def test_all_of_it_crosses(value: Any, options: dict[str, Any]) -> None:
    spec = GrammarSpec("json", value, "here", **options)
    assert GrammarSpec.unpacked(spec.packed()) == spec


def test_the_limit_is_the_last_size_that_is_taken() -> None:
    rest = len(GrammarSpec("regex", "", "here").packed())
    longest = "a" * (MAX_SPEC_BYTES - rest)
    assert len(GrammarSpec("regex", longest, "here").packed()) == MAX_SPEC_BYTES
    with pytest.raises(ApiError, match=f"at most {MAX_SPEC_BYTES} .*, got {MAX_SPEC_BYTES + 1}"):
        GrammarSpec("regex", longest + "a", "here").packed()


def test_too_deep_a_value_is_refused_by_name() -> None:
    deep: Any = True
    for _ in range(300):
        deep = {"not": deep}
    with pytest.raises(ApiError, match="here is nested too deep") as caught:
        GrammarSpec("json", deep, "here").packed()
    assert (caught.value.status, caught.value.param) == (400, "here")
