"""Kinds of fields: what each takes and refuses."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from server.endpoints.decisions.schema import DecisionsRequest
from server.endpoints.messages.schema import MessagesRequest
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.scoring.schema import ScoreRequest
from server.errors import ApiError
from server.schema.base import BodyModel, validate
from server.schema.fields import (
    Accepted,
    Instead,
    LogitBias,
    NotYet,
    Only,
    RequestId,
    StopField,
    StreamOptions,
)


class _Body(BodyModel):
    request_id: RequestId = None
    stop: StopField | None = None
    logit_bias: LogitBias | None = None
    later: NotYet = None
    ignored: Accepted = None
    only: Annotated[Any, Only(1.0, 1)] = None
    instead: Annotated[Any, Instead("stop")] = None
    options: StreamOptions | None = None


def read(**body: Any) -> _Body:
    return validate(_Body, body)


def refused(**body: Any) -> str:
    with pytest.raises(ApiError) as caught:
        read(**body)
    assert caught.value.status == 400
    (name,) = body
    assert (caught.value.param or "").startswith(name)
    return caught.value.message


class TestRequestId:
    @pytest.mark.parametrize("name", ["a", "job 7/ä", "日本", "x" * 256])
    def test_printable_names(self, name: str) -> None:
        assert read(request_id=name).request_id == name

    @pytest.mark.parametrize(
        "name", ["a\nb", "a\r", "\x1b[31m", "\x00", "\x7f", "\u2028", "\u0085", "\u202e"]
    )
    def test_what_would_break_or_forge_a_log_line_is_refused(self, name: str) -> None:
        message = refused(request_id=name)
        assert "unprintable" in message
        assert "\n" not in message
        assert "\x1b" not in message

    def test_null_is_none(self) -> None:
        assert read(request_id=None).request_id is None


class TestLogitBias:
    def test_ids_as_strings(self) -> None:
        assert read(logit_bias={"7": 1, "0": -2.5}).logit_bias == {"7": 1.0, "0": -2.5}

    @pytest.mark.parametrize("keys", [("7", "07"), ("0", "00"), ("5", "6", "0000000005")])
    def test_one_id_named_twice_is_refused(self, keys: tuple[str, ...]) -> None:
        message = refused(logit_bias=dict.fromkeys(keys, 1))
        assert f'once, got "{keys[0]}" and "{keys[-1]}"' in message

    @pytest.mark.parametrize("key", ["a", "-1", "1.0", "", " 1", "\u0661", "1" * 11])
    def test_other_keys_are_refused(self, key: str) -> None:
        assert "token ids as keys" in refused(logit_bias={key: 1})

    @pytest.mark.parametrize("value", [float("inf"), -101, "1", None, True])
    def test_values_are_finite_numbers_in_bounds(self, value: Any) -> None:
        """So that no bias masks a token."""
        refused(logit_bias={"7": value})


class TestStop:
    def test_one_or_many(self) -> None:
        assert read(stop="a").stop == ["a"]
        assert read(stop=["a", "b"]).stop == ["a", "b"]
        assert "a string or a list of strings" in refused(stop={"a": 1})


class TestFieldsWithoutMeaning:
    def test_not_yet(self) -> None:
        assert read(later=None).later is None
        assert "not available yet" in refused(later=0)

    def test_accepted_is_dropped(self) -> None:
        assert read(ignored={"a": [1]}).ignored is None

    @pytest.mark.parametrize("value", [None, 1, 1.0])
    def test_only_its_defaults(self, value: Any) -> None:
        assert read(only=value).only == value

    @pytest.mark.parametrize("value", [True, 2, "1"])
    def test_only_and_nothing_else(self, value: Any) -> None:
        assert "only 1.0 is" in refused(only=value)

    def test_another_name_is_told(self) -> None:
        assert read(instead=None).instead is None
        assert refused(instead=5) == "instead is not known here: use stop, got 5"


def test_stream_options() -> None:
    made = read(options={"include_usage": True, "include_obfuscation": False}).options
    assert made == StreamOptions(include_usage=True)
    assert "unknown field 'options.x'" in refused(options={"x": 1})


@pytest.mark.parametrize(
    ("kind", "body", "rule"),
    [
        (ResponsesRequest, {"input": 5}, "input must be a text or a list of items"),
        (
            ResponsesRequest,
            {"input": [{"role": "user", "content": 5}]},
            "input[0].content must be a text or a list of parts",
        ),
        (MessagesRequest, {"system": 5}, "system must be a text or a list of blocks"),
        (DecisionsRequest, {"input": 5}, "input must be a text or a list of items"),
        (ScoreRequest, {"text_1": 5}, "text_1 must be a text or a list of texts"),
    ],
)
def test_what_may_be_a_text_says_so(kind: type[BodyModel], body: dict[str, Any], rule: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate(kind, body)
    assert f"{rule}, got 5" in caught.value.message
