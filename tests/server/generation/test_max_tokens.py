"""The limit of a reply's tokens at the edge of the context."""

from __future__ import annotations

import pytest

from server.errors import TOO_LONG, ApiError, ClientNames
from server.generation.max_tokens import fitting_max_tokens

NAMES = ClientNames({"prompts": "prompt", "max_tokens": "max_completion_tokens"})


@pytest.mark.parametrize(
    ("max_tokens", "prompt_len", "fits_context", "wanted"),
    [
        *((4, 6, False, 4), (4, 6, True, 4)),  # to the last place of the context
        *((3, 6, False, 3), (100, 6, True, 4)),
        *((0, 10, False, 0), (0, 10, True, 0)),  # nothing is generated after a full context
    ],
)
def test_limits_that_fit(max_tokens: int, prompt_len: int, fits_context: bool, wanted: int) -> None:
    assert fitting_max_tokens(max_tokens, prompt_len, 10, NAMES, fits_context) == wanted


@pytest.mark.parametrize(
    ("max_tokens", "prompt_len", "fits_context", "param", "words"),
    [
        (5, 6, False, "max_completion_tokens", "must be at most 4 after a prompt of 6 tokens"),
        (1, 10, False, "prompt", "got 10 tokens"),
        (1, 10, True, "prompt", "got 10 tokens"),
        (0, 11, False, "prompt", "got 11 tokens"),
        (0, 11, True, "prompt", "got 11 tokens"),
    ],
)
def test_limits_that_do_not(
    max_tokens: int, prompt_len: int, fits_context: bool, param: str, words: str
) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        fitting_max_tokens(max_tokens, prompt_len, 10, NAMES, fits_context)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, TOO_LONG)
