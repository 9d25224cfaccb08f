"""Thoughts wrapped as `encrypted_content`, and what others wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.endpoints.responses.thoughts import unwrapped, wrapped


@given(st.text())
def test_what_was_wrapped_comes_back(thoughts: str) -> None:
    assert unwrapped(wrapped(thoughts)) == thoughts


def test_nothing_is_wrapped_as_nothing() -> None:
    assert wrapped("") == ""


@pytest.mark.parametrize(
    "content", ["", "gAAAAB", "SG0u", "tailrace:", "tailrace:*", "tailrace:/w=="]
)
def test_what_others_wrote_is_passed_over(content: str) -> None:
    assert unwrapped(content) == ""
