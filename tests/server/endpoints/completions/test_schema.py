"""The body of a completion request, as it is described and read."""

from __future__ import annotations

import pytest

from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.schema.base import decode


def test_max_completion_tokens_is_told_its_name_here() -> None:
    with pytest.raises(ApiError) as caught:
        decode(CompletionRequest, b'{"prompt": "x", "max_completion_tokens": 5}')
    assert caught.value.param == "max_completion_tokens"
    assert "use max_tokens, got 5" in caught.value.message
    decode(CompletionRequest, b'{"prompt": "x", "max_completion_tokens": null}')


def test_every_field_is_described_in_whole_sentences() -> None:
    schema = CompletionRequest.model_json_schema()
    for name, field in schema["properties"].items():
        words = field.get("description", "")
        assert words.endswith("."), name
        assert len(words.split()) >= 4, name
