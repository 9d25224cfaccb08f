"""The four forms of a prompt, and each other form refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.schema.base import decode


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (["x"] * 8193, "at most 8192 prompts, got 8193"),
        (None, "must be a string"),
        (5, "got 5"),
        ("", "must not be empty, got an empty string"),
        ([], "got an empty list"),
        ([[]], "an empty list at [0]"),
        (["a", ""], "an empty string at [1]"),
        (["a", 1], "got 1 at [1]"),
        ([1, "a"], 'integers only, got "a"'),
        ([1, True], "integers only, got true"),
        ([1.0], "integers only, got 1.0"),
        ([0, False], "integers only, got false"),
        ([-1], "got -1"),
        ([1, -(2**31)], f"got -{2**31}"),
        ([2**31], f"got {2**31}"),
        ([2**40], f"got {2**40}"),
        ([2**70], "integers only"),
        ([[1], [2, None]], "got null at [1]"),
        ({"a": 1}, "got an object"),
    ],
)
def test_refused(prompt: Any, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(CompletionRequest, json.dumps({"prompt": prompt}).encode())
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    assert words in caught.value.message
    assert caught.value.message.startswith("prompt")


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("ab", ["ab"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompt_forms(prompt: Any, parsed: list[Any]) -> None:
    body = decode(CompletionRequest, json.dumps({"prompt": prompt}).encode())
    assert [item if isinstance(item, str) else item.tolist() for item in body.prompt] == parsed
