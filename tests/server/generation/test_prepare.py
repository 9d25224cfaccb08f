"""Requests that cannot be served: refused by name, before the engine hears of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fake_values import VOCAB_SIZE
from tests.server.conftest import Site, in_process


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": [VOCAB_SIZE]}, "prompt", f"id {VOCAB_SIZE}; ids of this model are 0 to 263"),
        ({"prompt": [[1], [300]]}, "prompt", "id 300"),
        ({"prompt": "x" * 256}, "prompt", "256 tokens"),
        ({"prompt": [1] * 256}, "prompt", "256 tokens"),
        ({"prompt": "x" * 10000}, "prompt", "at least 1"),
        ({"prompt": "x" * 250, "max_tokens": 10}, "max_tokens", "at most 6"),
        ({"prompt": "a", "max_tokens": 5, "min_tokens": 6}, "min_tokens", "at most max_tokens (5)"),
        ({"prompt": "a", "min_tokens": 17}, "min_tokens", "(16), got 17"),
        ({"prompt": "a", "n": 1025}, "n", "at most 1024"),
        ({"prompt": "a", "n": 2, "best_of": 3}, "best_of", "n (2), got 3"),
        ({"prompt": ["a"] * 1025}, "prompt", "at most 1024 prompts"),
        ({"prompt": "a", "stream_options": {}}, "stream_options", "needs stream"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "between 0 and 20 (--max-logprobs), got 21"),
        ({"prompt": "a", "logprobs": -1}, "logprobs", "got -1"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs", "got 21"),
        ({"prompt": "a", "logit_bias": {"264": 1}}, "logit_bias", "id 264"),
        ({"prompt": "a", "stop_token_ids": [264]}, "stop_token_ids", "id 264"),
        ({"prompt": "a", "allowed_token_ids": [264]}, "allowed_token_ids", "id 264"),
        ({"prompt": "a", "logprob_token_ids": [264]}, "logprob_token_ids", "id 264"),
        (
            {"prompt": "ab", "prompt_logprob_token_ids": [264]},
            "prompt_logprob_token_ids",
            "id 264",
        ),
        ({"prompt": "ab", "prompt_logprob_start": 1}, "prompt_logprob_start", "needs"),
        (
            {"prompt": "ab", "prompt_logprobs": 1, "prompt_logprob_start": 2},
            "prompt_logprob_start",
            "below the prompt's 2 tokens, got 2",
        ),
        ({"prompt": "a", "bad_words": ["  "]}, "bad_words", "no tokens"),
    ],
)
async def test_refused(site: Site, body: dict[str, Any], param: str, words: str) -> None:
    error = await site.refused(**body)
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert site.engine.requests == []


async def test_context_errors_have_openai_s_code(site: Site) -> None:
    error = await site.refused(prompt="x" * 300)
    assert error["code"] == "context_length_exceeded"


async def test_no_cap_on_logprobs() -> None:
    async with in_process(max_logprobs=-1) as site:
        params = (await site.submitted(logprobs=-1)).params
        assert params.logprobs == VOCAB_SIZE
        error = await site.refused(prompt="a", logprobs=VOCAB_SIZE + 1)
        assert error["param"] == "logprobs"


async def test_a_prompt_that_fills_the_context_can_be_scored(site: Site) -> None:
    reply = await site.complete(prompt="x" * 256, max_tokens=0, echo=True, logprobs=0)
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == 256


async def test_best_of_may_equal_n(site: Site) -> None:
    assert len((await site.complete(prompt="a", n=2, best_of=2))["choices"]) == 2
    assert len((await site.complete(prompt="a", best_of=1))["choices"]) == 1


async def test_prompt_ids_reach_the_engine_as_int32(site: Site) -> None:
    request = await site.submitted(prompt=[1, 2])
    assert request.prompt_token_ids.dtype == np.int32
