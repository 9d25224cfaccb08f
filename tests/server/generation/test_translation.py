"""Each field reaches the engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sampling.params import SamplingParams
from server.endpoints.completions.schema import CompletionRequest
from server.schema.generation import LogprobFields, SamplingFields
from tests.fakes import BOS, EOS, FakeEngine
from tests.server.conftest import Site, in_process


async def test_drawn_tokens_have_fewer_top_tokens_where_the_engine_says_so() -> None:
    engine = FakeEngine()
    engine.info = msgspec.structs.replace(engine.info, max_drawn_top=3)
    async with in_process(engine, max_logprobs=-1) as site:
        await site.complete(prompt="hello", max_tokens=1, prompt_logprobs=-1, logprobs=3)
        wanted = site.engine.requests[-1].prompt_logprobs
        assert wanted is not None
        assert wanted.num_top == engine.info.vocab_size
        for value in (-1, 4):
            error = await site.refused(prompt="hello", max_tokens=1, logprobs=value)
            assert "between 0 and 3" in error["message"]


async def test_all_top_tokens_are_as_many_as_the_server_allows() -> None:
    num_tokens = FakeEngine().info.vocab_size
    async with in_process(max_logprobs=num_tokens) as site:
        await site.complete(prompt="hello", max_tokens=1, prompt_logprobs=-1)
        wanted = site.engine.requests[-1].prompt_logprobs
        assert wanted is not None
        assert wanted.num_top == num_tokens
    async with in_process(max_logprobs=num_tokens - 1) as site:
        error = await site.refused(prompt="hello", max_tokens=1, prompt_logprobs=-1)
        assert f"between 0 and {num_tokens - 1}" in error["message"]


class TestToTheEngine:
    async def test_neutral_defaults(self, site: Site) -> None:
        params = (await site.submitted()).params
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
        assert params.seed is None
        assert params.stop_token_ids == (EOS,)
        assert params.logprobs is None

    async def test_every_sampling_field(self, site: Site) -> None:
        body = {
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.9,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": -1.0,
            "frequency_penalty": 2,
            "seed": -5,
            "logit_bias": {"5": -3},
            "allowed_token_ids": [1, 2],
            "min_tokens": 1,
            "stop_token_ids": [9, 9, EOS],
            "logprobs": 3,
            "logprob_token_ids": [4, 4],
            "logprobs_mode": "processed_logits",
        }
        params = (await site.submitted(**body)).params
        expected = dict(body, logit_bias={5: -3.0}, stop_token_ids=(EOS, 9))
        expected |= {"allowed_token_ids": (1, 2), "logprob_token_ids": (4, 4)}
        assert {name: getattr(params, name) for name in expected} == expected

    def test_fields_and_parameters_have_the_same_names(self) -> None:
        """One is read off the other by its name: what is misspelled would be dropped silently."""
        parameters = set(SamplingParams.__struct_fields__) - {"constrained"}
        assert parameters <= CompletionRequest.model_fields.keys()
        fields = SamplingFields.model_fields.keys() | LogprobFields.model_fields.keys()
        prompts = {name for name in fields if name.startswith("prompt_logprob")}
        forms = {"include_stop_str_in_output", "logprobs_format", "return_tokens_as_token_ids"}
        forms |= {"return_token_ids", "return_token_origin", "logprobs_dtype"}
        ends = {"max_tokens", "n", "stop", "ignore_eos"}
        assert fields - parameters == prompts | forms | ends

    async def test_top_k_minus_one_keeps_all(self, site: Site) -> None:
        assert (await site.submitted(top_k=-1)).params.top_k == 0

    async def test_seed_minus_one_is_none(self, site: Site) -> None:
        assert (await site.submitted(seed=-1)).params.seed is None

    async def test_seed_zero_is_a_seed(self, site: Site) -> None:
        assert (await site.submitted(seed=0)).params.seed == 0

    async def test_scheduling_fields(self) -> None:
        async with in_process(priority_scheduling=True) as site:
            request = await site.submitted(priority=-3, cache_salt="s", n=2)
        assert (request.priority, request.cache_salt, request.n) == (-3, "s", 2)

    async def test_priority_needs_its_policy(self, site: Site) -> None:
        assert (await site.refused(prompt="a", priority=1))["param"] == "priority"
        await site.complete(prompt="a", priority=0)

    @pytest.mark.parametrize(
        ("body", "interval"),
        [
            ({}, 32),
            ({"stop": "x"}, 4),
            ({"stream": True}, 2),
            ({"stream": True, "stream_interval": 5}, 5),
            ({"stream": True, "stream_interval": 1}, 2),
        ],
    )
    async def test_emit_interval(self, body: dict[str, Any], interval: int) -> None:
        async with in_process(stream_interval=2) as site:
            await site.client.post("/v1/completions", json={"prompt": "hello", **body})
            assert site.engine.requests[-1].emit_interval == interval

    async def test_bad_words_are_tokenised_with_and_without_a_space(self, site: Site) -> None:
        params = (await site.submitted(bad_words=["ab"])).params
        assert params.bad_words == ((97, 98),)  # with a space it is longer, as in vLLM

    async def test_special_tokens_are_added_unless_told_not_to(self) -> None:
        async with in_process(with_bos=True) as site:
            assert (await site.submitted()).prompt_token_ids[0] == BOS
            request = await site.submitted(add_special_tokens=False)
            assert request.prompt_token_ids.tolist() == list(b"hello")
