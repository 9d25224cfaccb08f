"""How large a request and its reply may be: refused before anything is made, factors named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.messages.request import PromptLogprobsParams
from sampling.params import SamplingParams
from server.config import ServerConfig
from server.errors import ApiError
from server.generation.prompts import Prompt
from server.generation.size_limits import (
    check_counts,
    check_reply_size,
)
from server.generation.spec import GenerationSpec
from server.schema.fields import MAX_ALLOWED_IDS
from tests.server.conftest import in_process
from tests.server.generation.pieces import form, spec

CONFIG = ServerConfig(model_names=("m",), max_choices_per_request=12, max_reply_values=1000)
MANY = ServerConfig(model_names=("m",), max_choices_per_request=1024)


def prompts(count: int, length: int, max_tokens: int) -> list[Prompt]:
    return [Prompt(np.zeros(length, dtype=np.int32), None, max_tokens)] * count


def counted(num_prompts: int, n: int = 1, num_ids: int = 0) -> GenerationSpec:
    """A spec of so many prompts, choices of each, and allowed ids."""
    ids = tuple(range(num_ids)) or None
    params = SamplingParams(allowed_token_ids=ids)
    return spec(form(), prompts=["a"] * num_prompts, n=n, params=params)


class TestChoices:
    @pytest.mark.parametrize(("num_prompts", "n"), [(12, 1), (1, 12), (3, 4)])
    def test_up_to_the_limit(self, num_prompts: int, n: int) -> None:
        check_counts(counted(num_prompts, n), CONFIG)

    def test_beyond_it_both_factors_are_named(self) -> None:
        with pytest.raises(ApiError, match="at most 12") as caught:
            check_counts(counted(13, 7), CONFIG)
        assert (caught.value.status, caught.value.param) == (400, "n")
        assert "(--max-choices-per-request), got 13 prompts x n 7 = 91" in caught.value.message

    async def test_the_engine_never_hears_of_it(self) -> None:
        async with in_process() as site:
            error = await site.refused(prompt=["a"] * 1024, n=5)
            assert "got 1024 prompts x n 5 = 5120" in error["message"]
            assert site.engine.requests == []
            await site.complete(prompt=["a"] * 1024, n=4, max_tokens=1)


class TestAllowedIds:
    def test_each_prompt_takes_them_along(self) -> None:
        check_counts(counted(1024, num_ids=4096), MANY)
        check_counts(counted(1, num_ids=MAX_ALLOWED_IDS), MANY)
        with pytest.raises(ApiError, match="got 1024 prompts x 4097 ids") as caught:
            check_counts(counted(1024, num_ids=4097), MANY)
        assert (caught.value.status, caught.value.param) == (400, "allowed_token_ids")

    async def test_the_engine_never_hears_of_it(self) -> None:
        async with in_process() as site:
            error = await site.refused(prompt=["a"] * 17, allowed_token_ids=[97] * MAX_ALLOWED_IDS)
            assert error["param"] == "allowed_token_ids"
            assert site.engine.requests == []


class TestReplySize:
    """1,000 values, a token and each of its logprobs being one."""

    @pytest.mark.parametrize(
        ("fields", "num_prompts", "n", "max_tokens", "fits"),
        [
            ({}, 2, 5, 100, True),
            ({}, 2, 5, 101, False),
            ({"num_top": 4}, 1, 2, 100, True),
            ({"num_top": 4}, 1, 2, 101, False),
            ({"num_top": 1, "explicit_ids": (1, 2, 3)}, 1, 2, 100, True),
            ({"explicit_ids": (1, 2, 3, 4)}, 1, 2, 101, False),
            ({"next_token_only": True, "num_top": 0, "explicit_ids": (1,) * 128}, 7, 1, 0, True),
            ({"next_token_only": True, "num_top": 0, "explicit_ids": (1,) * 128}, 8, 1, 0, False),
        ],
    )
    def test_what_is_generated(
        self, fields: dict[str, Any], num_prompts: int, n: int, max_tokens: int, fits: bool
    ) -> None:
        asked = spec(form(**fields), n=n), prompts(num_prompts, 10, max_tokens), CONFIG
        if fits:
            check_reply_size(*asked)
            return
        with pytest.raises(ApiError) as caught:
            check_reply_size(*asked)
        assert (caught.value.status, caught.value.param) == (400, "max_tokens")
        assert caught.value.code == "reply_too_large"

    def test_each_choice_tells_of_its_prompt(self) -> None:
        wanted = PromptLogprobsParams(num_top=3, token_ids=(5,))
        shown = spec(form(prompt_logprobs=wanted, num_prompt_top=3), n=5)
        check_reply_size(shown, prompts(1, 39, 1), CONFIG)  # 5 x 39 x 5 + 5 x 1 = 980
        with pytest.raises(ApiError) as caught:
            check_reply_size(shown, prompts(1, 40, 1), CONFIG)  # 5 x 40 x 5 + 5 = 1005
        assert caught.value.param == "prompt"
        assert "1005 values, at most 1000 (--max-reply-values)" in caught.value.message
        assert "n 5 x 40 prompt tokens x (1 + 3 prompt logprobs + 1" in caught.value.message
        check_reply_size(
            spec(form(), n=5), prompts(1, 10**6, 1), CONFIG
        )  # nothing is reported of it
        with pytest.raises(ApiError):
            check_reply_size(spec(form(echo=True)), prompts(1, 1001, 1), CONFIG)

    def test_the_factors_are_named(self) -> None:
        with pytest.raises(ApiError) as caught:
            check_reply_size(spec(form(num_top=20), n=7), prompts(3, 10, 500), CONFIG)
        words = "3 prompts x n 7 x max_tokens 500 x (1 + 20 logprobs + 0 logprob_token_ids)"
        assert words in caught.value.message
        assert f"{3 * 7 * 500 * 21} values" in caught.value.message

    async def test_the_engine_never_hears_of_it(self) -> None:
        async with in_process(max_reply_values=100) as site:
            error = await site.refused(prompt="ab", max_tokens=10, logprobs=10)
            assert error["param"] == "max_tokens"
            assert site.engine.requests == []
            await site.complete(prompt="ab", max_tokens=10, logprobs=9)
