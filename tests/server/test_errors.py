"""What an endpoint's clients call the fields of a spec."""

from __future__ import annotations

import pytest

from server.errors import ApiError, ClientNames, bad_request

NAMES = ClientNames(max_tokens="max_output_tokens")


def test_a_field_that_is_named() -> None:
    error = NAMES.refuse("max_tokens", "must be 1", "a_code")
    assert (error.param, error.message) == ("max_output_tokens", "max_output_tokens must be 1")
    assert (error.status, error.code) == (400, "a_code")


def test_others_keep_their_name() -> None:
    error = NAMES.refuse("tools", "are bad")
    assert (error.param, error.message) == ("tools", "tools are bad")
    assert NAMES["max_tokens_"] == "max_tokens_"


@pytest.mark.parametrize(
    ("param", "message", "wanted"),
    [
        ("max_tokens", "max_tokens is bad", ("max_output_tokens", "max_output_tokens is bad")),
        ("max_tokens[0].a", "too many", ("max_output_tokens[0].a", "too many")),
        ("max_tokens_", "max_tokens_ is bad", ("max_tokens_", "max_tokens_ is bad")),
        (None, "max_tokens is bad", (None, "max_tokens is bad")),
    ],
)
def test_what_is_refused_by_the_name_of_a_spec_gets_the_clients(
    param: str | None, message: str, wanted: tuple[str | None, str]
) -> None:
    with pytest.raises(ApiError) as caught, NAMES.used():
        raise bad_request(param, message)
    assert (caught.value.param, caught.value.message) == wanted
