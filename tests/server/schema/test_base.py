"""Bodies: each rule that is broken is answered with the field, the rule and the value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.schema.base import MAX_ERRORS, decode, validate
from tests.server.slowness import fastest, slowness


def refusal(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(CompletionRequest, raw)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"prompt": NaN}', "not valid JSON"),
        (b"[" * 5000, "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"prompt": "\xed\xa0\x80"}', "not valid JSON"),
        (b"[]", "must be a JSON object, got a list of 0"),
        (b"null", "must be a JSON object, got null"),
        (b'"x"', 'must be a JSON object, got "x"'),
    ],
)
def test_bodies_that_are_no_object(raw: bytes, words: str) -> None:
    error = refusal(raw)
    assert words in error.message
    assert error.param is None


@pytest.mark.parametrize(
    ("field", "value", "param", "words"),
    [
        ("tempature", 1, "tempature", "did you mean 'temperature'?"),
        ("nonsense", 1, "nonsense", "unknown field 'nonsense'"),
        ("temperature", "1", "temperature", 'must be a number, got "1"'),
        ("temperature", True, "temperature", "must be a number, got true"),
        ("temperature", -0.5, "temperature", "must be at least 0, got -0.5"),
        ("top_p", 0, "top_p", "must be above 0, got 0"),
        ("top_p", 1.5, "top_p", "must be at most 1, got 1.5"),
        ("top_k", -2, "top_k", "must be at least -1, got -2"),
        ("top_k", 2.0, "top_k", "must be an integer, got 2.0"),
        ("min_p", 1.01, "min_p", "must be at most 1"),
        ("repetition_penalty", 0, "repetition_penalty", "must be at least 1e-06"),
        ("presence_penalty", 2.5, "presence_penalty", "must be at most 2, got 2.5"),
        ("max_tokens", "5", "max_tokens", 'must be an integer, got "5"'),
        ("max_tokens", True, "max_tokens", "must be an integer, got true"),
        ("max_tokens", -1, "max_tokens", "must be at least 0, got -1"),
        ("n", 0, "n", "must be at least 1, got 0"),
        ("seed", 2**63, "seed", f"must be at most {2**63 - 1}, got {2**63}"),
        ("seed", 2**64, "seed", "must be an integer"),
        ("logprobs", True, "logprobs", "must be an integer, got true"),
        ("logprobs", -2, "logprobs", "must be at least -1"),
        ("echo", 1, "echo", "must be true or false, got 1"),
        ("stop", 5, "stop", "must be a string or a list of strings, got 5"),
        ("stop", "", "stop[0]", "too short"),
        ("stop", ["a", 1], "stop[1]", "must be a string, got 1"),
        ("stop", ["x"] * 129, "stop", "at most 128, got a list of 129"),
        ("stop_token_ids", [-1], "stop_token_ids[0]", "must be at least 0, got -1"),
        ("logit_bias", {"a": 1}, "logit_bias", 'token ids as keys, got "a"'),
        ("logit_bias", {"5": 101}, "logit_bias.5", "must be at most 100, got 101"),
        ("logit_bias", {"5": "x"}, "logit_bias.5", "must be a number"),
        ("logit_bias", [1], "logit_bias", "must be an object, got a list of 1"),
        ("allowed_token_ids", [], "allowed_token_ids", "too short"),
        ("bad_words", [""], "bad_words[0]", "too short"),
        ("logit_bias", {str(i): 1 for i in range(16385)}, "logit_bias", "at most 16384"),
        ("allowed_token_ids", [1] * 262145, "allowed_token_ids", "at most 262144"),
        ("model", "x" * 1025, "model", "at most 1024"),
        ("logprob_token_ids", [], "logprob_token_ids", "too short: at least 1"),
        ("logprob_token_ids", [1] * 129, "logprob_token_ids", "at most 128"),
        ("logprobs_mode", "raw", "logprobs_mode", "'raw_logprobs'"),
        ("stream_options", {"x": 1}, "stream_options.x", "unknown field"),
        ("stream_options", 1, "stream_options", "must be an object, got 1"),
        ("truncation_side", "up", "truncation_side", "must be 'left' or 'right'"),
        ("truncate_prompt_tokens", -2, "truncate_prompt_tokens", "must be at least -1"),
        ("cache_salt", "", "cache_salt", "too short"),
        ("request_id", "x" * 257, "request_id", "at most 256"),
        ("stream_interval", 0, "stream_interval", "must be at least 1"),
    ],
)
def test_fields(field: str, value: Any, param: str, words: str) -> None:
    body = {"prompt": "x", field: value}
    error = refusal(json.dumps(body).encode())
    assert error.param == param
    assert words in error.message
    assert error.message.startswith((param, "unknown field"))


def test_no_other_name_is_told_of_a_field_within() -> None:
    error = refusal(b'{"prompt": "x", "stream_options": {"echoo": 1}}')
    assert error.message == "unknown field 'stream_options.echoo'"


def test_a_missing_prompt() -> None:
    error = refusal(b"{}")
    assert (error.param, error.message) == ("prompt", "prompt is required")


def test_long_values_are_cut_short_in_messages() -> None:
    error = refusal(json.dumps({"prompt": "x", "temperature": "y" * 10**6}).encode())
    assert len(error.message) < 200
    assert "1000000 characters" in error.message


NOT_YET = {
    "prompt_embeds": "x",
    "use_beam_search": True,
    "length_penalty": 1.5,
    "kv_transfer_params": {},
    "ec_transfer_params": {},
    "vllm_xargs": {},
    "repetition_detection": {},
    "thinking_token_budget": 5,
    "watermarking": {},
    "routed_experts_prompt_start": 1,
    "return_token_offsets": True,
    "return_mm_kwargs": True,
}


@pytest.mark.parametrize(("field", "value"), NOT_YET.items())
def test_what_is_not_available_yet_is_refused_by_name(field: str, value: Any) -> None:
    error = refusal(json.dumps({"prompt": "x", field: value}).encode())
    assert error.param == field
    assert "not available yet" in error.message


def test_null_means_the_default_everywhere() -> None:
    names = [name for name in CompletionRequest.model_fields if name != "prompt"]
    body = json.dumps({"prompt": "x"} | dict.fromkeys(names)).encode()
    assert decode(CompletionRequest, body) == decode(CompletionRequest, b'{"prompt": "x"}')


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_beam_search", False),
        ("length_penalty", 1.0),
        ("length_penalty", 1),
        ("response_format", {"type": "text"}),
        ("structured_outputs", {}),
        ("user", "me"),
        ("metadata", {"a": [1]}),
        ("store", True),
        ("service_tier", "auto"),
        ("temperature", 0),
        ("seed", -(2**63)),
    ],
)
def test_what_means_nothing_or_is_a_default_is_accepted(field: str, value: Any) -> None:
    body = decode(CompletionRequest, json.dumps({"prompt": "x", field: value}).encode())
    assert body.prompt == ["x"]


def test_what_is_ignored_is_dropped() -> None:
    body = decode(CompletionRequest, b'{"prompt": "x", "metadata": {"a": [1, 2]}}')
    assert body.metadata is None


def test_every_field_is_described() -> None:
    schema = CompletionRequest.model_json_schema()
    for name, field in schema["properties"].items():
        assert field.get("description"), name


class TestManyErrors:
    def test_all_are_told(self) -> None:
        error = refusal(b'{"prompt": "x", "n": 0, "temperature": "a", "tempature": 1, "top_p": 2}')
        assert error.message == (
            'n must be at least 1, got 0; temperature must be a number, got "a"; '
            "top_p must be at most 1, got 2; "
            "unknown field 'tempature' (did you mean 'temperature'?)"
        )
        assert error.param == "n"

    @pytest.mark.parametrize("count", [MAX_ERRORS, MAX_ERRORS + 1, 500])
    def test_twenty_are_told_and_the_rest_counted(self, count: int) -> None:
        body = {"prompt": "x", **{f"zz{i}": 1 for i in range(count)}}
        error = refusal(json.dumps(body).encode())
        assert error.param == "zz0"
        reported = [f"unknown field 'zz{i}'" for i in range(MAX_ERRORS)]
        more = f" (and {count - MAX_ERRORS} more)" if count > MAX_ERRORS else ""
        assert error.message == "; ".join(reported) + more

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({f"k{i}": 1 for i in range(200_000)}, "and 199980 more"),
            ({"stream_options": {f"k{i}": 1 for i in range(200_000)}}, "at most 23 fields"),
            ({"logit_bias": {f"{i}": "x" for i in range(200_000)}}, "at most 16384"),
            ({"allowed_token_ids": ["x"] * 200_000}, "must be an integer"),
            ({"stop": [1] * 200_000}, "at most 128"),
            ({"bad_words": [1] * 200_000}, "at most 1024"),
            ({"x" * 5_000_000: 1}, "unknown field"),
        ],
    )
    def test_errors_are_not_made_that_are_not_told(self, body: Any, words: str) -> None:
        """An error of each of 200,000 takes a second; a refusal of these takes 20 ms at most."""
        known = {"prompt": "x", **body}

        def check() -> None:
            with pytest.raises(ApiError) as caught:
                validate(CompletionRequest, known)
            assert words in caught.value.message
            assert len(caught.value.message) < 2000
            assert len(caught.value.param or "") < 100

        assert fastest(check, 3) < 0.1 * slowness()

    def test_a_long_body_of_some_unknown_fields_is_refused_for_them_alone(self) -> None:
        error = refusal(json.dumps({"prompt": 5, **{f"k{i}": 1 for i in range(200)}}).encode())
        assert "prompt" not in error.message
