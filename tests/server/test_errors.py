"""What an endpoint's clients call the fields of a spec."""

from __future__ import annotations

from server.errors import ClientNames

NAMES = ClientNames(max_tokens="max_output_tokens")


def test_a_field_that_is_named() -> None:
    error = NAMES.refuse("max_tokens", "must be 1", "a_code")
    assert (error.param, error.message) == ("max_output_tokens", "max_output_tokens must be 1")
    assert (error.status, error.code) == (400, "a_code")


def test_others_keep_their_name() -> None:
    error = NAMES.refuse("tools", "are bad")
    assert (error.param, error.message) == ("tools", "tools are bad")
    assert NAMES["max_tokens_"] == "max_tokens_"
