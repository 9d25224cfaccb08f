"""Masks that contradict each other: refused before the engine hears of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sampling.params import SamplingParams
from server.errors import ApiError
from server.generation.masks import check_some_token_is_left
from tests.fakes import EOS, FakeEngine
from tests.server.conftest import Site


class TestNoTokenIsLeft:
    """Masks that hold from the first token on are known at admission: a 400 and no server error."""

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"allowed_token_ids": [97], "bad_words": ["a"]}, "allowed_token_ids"),
            ({"allowed_token_ids": [97, 98], "bad_words": ["b", "a", "xy"]}, "allowed_token_ids"),
            ({"allowed_token_ids": [EOS], "min_tokens": 1}, "allowed_token_ids"),
            (
                {"allowed_token_ids": [EOS, 9], "min_tokens": 1, "stop_token_ids": [9]},
                "allowed_token_ids",
            ),
            (
                {"allowed_token_ids": [EOS, 97], "min_tokens": 1, "bad_words": ["a"]},
                "allowed_token_ids",
            ),
        ],
    )
    async def test_refused(self, site: Site, body: dict[str, Any], param: str) -> None:
        error = await site.refused(prompt="hello", **body)
        assert (error["param"], error["code"]) == (param, "no_token_allowed")
        assert site.engine.requests == []
        assert site.metric("tailrace_request_outcomes_total", outcome="server_error") == 0
        assert site.metric("tailrace_request_outcomes_total", outcome="client_error") == 1

    @pytest.mark.parametrize(
        "body",
        [
            {"allowed_token_ids": [97, 98], "bad_words": ["a"]},
            {"allowed_token_ids": [97], "bad_words": ["ab"]},  # masks b after a only
            {"allowed_token_ids": [EOS]},  # without min_tokens it may be drawn
            {"allowed_token_ids": [EOS], "min_tokens": 1, "ignore_eos": True},
            {"min_tokens": 1, "bad_words": ["a"]},
            {"allowed_token_ids": [97], "logit_bias": {"97": -100}},  # unlikely, not masked
        ],
    )
    async def test_served_where_one_is_left(self, site: Site, body: dict[str, Any]) -> None:
        params = (await site.submitted(**body)).params
        allowed = body.get("allowed_token_ids")
        assert params.allowed_token_ids == (None if allowed is None else tuple(allowed))
        assert params.min_tokens == body.get("min_tokens", 0)

    async def test_a_whole_vocabulary_of_bad_words(self) -> None:
        params = SamplingParams(bad_words=tuple((i,) for i in range(8)))
        info = FakeEngine().info
        small = msgspec.structs.replace(info, vocab_size=8)
        with pytest.raises(ApiError) as caught:
            check_some_token_is_left(params, small)
        assert caught.value.param == "bad_words"
        check_some_token_is_left(params, info)
