"""`/inference/v1/generate` over the fake engine, whose tokens are bytes."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from engine.messages.step_output import Finish
from server.endpoints.generate_tokens.reply_schema import GenerateTokensReply
from server.generation.render import Renderer
from tests.fakes import BOS, EOS, FakeEngine, says
from tests.server.conftest import Site, chunks_of, error_of, in_process
from tests.server.endpoints.generate_tokens.routed import PROMPT, wanted_routes, with_routes
from tests.server.written_ahead import note_written_ahead


async def generated(site: Site, *, stream: bool = False, **fields: Any) -> Any:
    """The reply, or the chunks of a stream, to `fields` beside a prompt."""
    body = {"token_ids": PROMPT, "model": "fake", "stream": stream, **fields}
    reply = await site.client.post("/inference/v1/generate", json=body)
    assert reply.status_code == 200, reply.text
    if stream:
        return chunks_of(reply.text)
    GenerateTokensReply.model_validate(reply.json())
    return reply.json()


async def refused(site: Site, **fields: Any) -> dict[str, Any]:
    body = {"token_ids": PROMPT, **fields}
    reply = await site.client.post("/inference/v1/generate", json=body)
    assert reply.status_code == 400, reply.text
    return error_of(reply)


async def test_the_reply(site: Site) -> None:
    reply = await generated(
        site, request_id="mine", sampling_params={"max_tokens": 3}, return_token_ids=True
    )
    (choice,) = reply["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (PROMPT[:3], "length")
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": 3}]
    assert choice["logprobs"] is choice["sampling_mask"] is None
    assert "text" not in choice
    assert (reply["request_id"], reply["prompt_token_ids"]) == ("mine", PROMPT)
    assert reply["usage"]["completion_tokens"] == 3


async def test_logprobs_are_by_id_and_those_of_completions(site: Site) -> None:
    wanted = {"max_tokens": 3, "logprobs": 2, "logprob_token_ids": [EOS, BOS]}
    (choice,) = (await generated(site, sampling_params=wanted))["choices"]
    (same,) = (await site.complete(prompt=PROMPT, **wanted))["choices"]
    content, columns = choice["logprobs"]["content"], same["logprobs"]
    assert [entry["token_id"] for entry in content] == columns["token_ids"]
    assert [entry["logprob"] for entry in content] == columns["token_logprobs"]
    assert [entry["rank"] for entry in content] == columns["ranks"]
    for entry, top_ids in zip(content, columns["top_token_ids"], strict=True):
        first, *others = entry["top_logprobs"]
        assert first == {key: entry[key] for key in ("token_id", "token", "logprob", "rank")}
        assert first["token"] == f"token_id:{first['token_id']}"
        shown = {top["token_id"] for top in entry["top_logprobs"]}
        assert shown == set(top_ids) - {EOS, BOS} | {first["token_id"]}
        assert [other["rank"] for other in others] == sorted(other["rank"] for other in others)
    assert choice["logprob_token_ids"] == same["logprob_token_ids"]


@pytest.mark.parametrize(
    "options",
    [
        {"logprobs": 2},
        {"logprobs": 0, "logprob_token_ids": [98, 5], "n": 2},
        {"logprobs": 1, "prompt_logprobs": 1, "logprobs_mode": "processed_logprobs", "top_k": 3},
    ],
)
async def test_logprobs_written_ahead_join_the_rest(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = note_written_ahead(monkeypatch, Renderer)
    fields: dict[str, Any] = {"sampling_params": {"max_tokens": 120, **options}}
    fields |= {"output_mode": "text", "return_sampling_mask": "top_k" in options}
    async with in_process(FakeEngine(says("aéb" * 40))) as site:
        reply = await generated(site, **fields)
        assert len(ahead) >= 2
        monkeypatch.setattr(Renderer, "due", lambda *_: [])
        once = await generated(site, **fields)
    assert reply["choices"] == once["choices"]
    assert reply.get("prompt_logprobs") == once.get("prompt_logprobs")
    for choice in reply["choices"]:
        content = choice["logprobs"]["content"]
        assert [entry["token_id"] for entry in content] == choice["token_ids"]
        assert len(content) == 120


async def test_packed_logprobs_are_those_of_completions(site: Site) -> None:
    wanted = {"max_tokens": 3, "logprobs": 1, "logprobs_format": "packed"}
    (choice,) = (await generated(site, sampling_params=wanted))["choices"]
    (same,) = (await site.complete(prompt=PROMPT, **wanted))["choices"]
    values = same["logprobs"]
    assert choice["logprobs"]["token_logprobs"] == values["token_logprobs"]
    assert choice["logprobs"]["top_token_ids"] == values["top_token_ids"]


async def test_logprobs_of_the_prompt(site: Site) -> None:
    wanted = {"max_tokens": 1, "prompt_logprobs": 1, "prompt_logprob_token_ids": [5, 6]}
    reply = await generated(site, sampling_params=wanted)
    (same,) = (await site.complete(prompt=PROMPT, **wanted))["choices"]
    first, *others = reply["prompt_logprobs"]
    assert first is None
    assert [list(entry) for entry in others] == [
        list(entry) for entry in same["prompt_logprobs"][1:]
    ]
    assert next(iter(others[0])) == str(PROMPT[1]), "the actual token comes first"
    array = np.load(io.BytesIO(base64.b64decode(reply["prompt_token_id_logprobs"])))
    assert array.tolist() == pytest.approx(
        np.array(same["prompt_logprob_token_ids"]["logprobs"], dtype=np.float32)
    )


async def test_several_choices_and_text(site: Site) -> None:
    wanted = {"max_tokens": 2, "n": 2, "logprobs": 0}
    reply = await generated(site, sampling_params=wanted, output_mode="text")
    assert [c["text"] for c in reply["choices"]] == ["he", "el"]
    assert [c["index"] for c in reply["choices"]] == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_has_no_logprobs(site: Site, *, stream: bool) -> None:
    """They are of the next token, which is not generated; arrays of it may be asked for."""
    wanted = {"max_tokens": 0, "logprobs": 1}
    reply = await generated(site, sampling_params=wanted, stream=stream)
    choices = [choice for each in (reply if stream else [reply]) for choice in each["choices"]]
    assert [choice["token_ids"] for choice in choices] == [[]]
    assert choices[0]["logprobs"]["content"] == []


async def test_usage_can_be_forced() -> None:
    async with in_process(FakeEngine(says("ab")), force_include_usage=True) as site:
        chunks = await generated(site, stream=True, sampling_params={"max_tokens": 2})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


async def test_a_joined_stream_equals_the_plain_reply(site: Site) -> None:
    wanted = {"max_tokens": 4, "n": 2, "logprobs": 1, "prompt_logprobs": 0}
    plain = await generated(site, sampling_params=wanted, return_token_ids=True)
    *chunks, last = await generated(
        site,
        stream=True,
        sampling_params=wanted,
        return_token_ids=True,
        stream_options={"include_usage": True},
    )
    assert last["usage"] == plain["usage"]
    for wanted_choice in plain["choices"]:
        own = [c["choices"][0] for c in chunks]
        own = [c for c in own if c["index"] == wanted_choice["index"]]
        assert [i for c in own for i in c["token_ids"]] == wanted_choice["token_ids"]
        content = [entry for c in own for entry in c["logprobs"]["content"]]
        assert content == wanted_choice["logprobs"]["content"]
        assert own[-1]["weight_versions"] == wanted_choice["weight_versions"]
        assert all(c["weight_versions"] is None for c in own[:-1])
    assert chunks[0]["prompt_token_ids"] == PROMPT
    assert chunks[0]["prompt_logprobs"] == plain["prompt_logprobs"]
    assert "prompt_token_ids" not in chunks[-1]


ROUTED = {"return_routed_experts": True, "return_routed_expert_weights": True}


def array_of(text: str) -> Any:
    return np.load(io.BytesIO(base64.b64decode(text)))


async def test_routed_experts_are_there_where_the_server_keeps_them(site: Site) -> None:
    wanted = {"max_tokens": 3, "n": 2}
    async with with_routes() as routed:
        for choice in (await generated(routed, sampling_params=wanted))["choices"]:
            routes = array_of(choice["routed_experts"])
            assert (routes.dtype, routes.shape) == (np.uint8, (len(PROMPT) + 2, 2, 1))
            assert np.array_equal(routes, wanted_routes(3).ids)
            assert "routed_expert_weights" not in choice
        (choice,) = (await generated(routed, return_routed_experts=False))["choices"]
        assert choice["routed_experts"] is None
    (choice,) = (await generated(site, sampling_params={"max_tokens": 3}))["choices"]
    assert choice["routed_experts"] is None
    assert "--enable-return-routed-experts" in (await refused(site, **ROUTED))["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_routed_experts_with_weights_from_a_token_on(*, stream: bool) -> None:
    params = {"max_tokens": 3, "routed_experts_prompt_start": 2}
    async with with_routes() as site:
        reply = await generated(site, stream=stream, sampling_params=params, **ROUTED)
    (choice,) = (reply[-1] if stream else reply)["choices"]
    wanted = wanted_routes(3, start=2)
    assert np.array_equal(array_of(choice["routed_experts"]), wanted.ids)
    assert np.array_equal(array_of(choice["routed_expert_weights"]), wanted.weights)
    if stream:
        assert all(c["choices"][0]["routed_experts"] is None for c in reply[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_routed_experts_end_where_a_stop_string_did(*, stream: bool) -> None:
    """The engine reports them when it has ended the choice too, which has drawn more by then."""
    async with with_routes(says("abcdefgh")) as site:
        params = {"max_tokens": 9, "stop": ["cd"]}
        reply = await generated(site, stream=stream, sampling_params=params)
        (choice,) = (reply[-1] if stream else reply)["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "cd")
        chunks = reply if stream else [reply]
        shown = [i for c in chunks for i in c["choices"][0]["token_ids"]]
        assert shown == list(b"ab")
        assert np.array_equal(array_of(choice["routed_experts"]), wanted_routes(2).ids)
        assert len(site.engine.aborted) == 1
        assert site.engine.idle


async def test_routed_experts_that_cannot_be() -> None:
    async with with_routes() as site:
        start = {"sampling_params": {"routed_experts_prompt_start": len(PROMPT) + 1}}
        error = await refused(site, **start)
        assert error["param"] == "sampling_params.routed_experts_prompt_start"
        assert "at most the prompt's 5 tokens, got 6" in error["message"]
        error = await refused(site, return_routed_experts=False, return_routed_expert_weights=True)
        assert error["param"] == "return_routed_expert_weights"


async def test_an_aborted_choice_has_its_tokens() -> None:
    async with in_process(FakeEngine(says("ab", then=Finish.CANCELED))) as site:
        (choice,) = (await generated(site))["choices"]
        assert (choice["token_ids"], choice["finish_reason"]) == (list(b"ab"), "abort")


async def test_the_mask_has_what_could_have_been_drawn() -> None:
    """The engine is asked for as long a top list as the filters may leave, after processing."""
    async with in_process(max_logprobs=5) as site:
        wanted = {"max_tokens": 2, "top_k": 4, "logprobs": 0}
        reply = await generated(site, sampling_params=wanted, return_sampling_mask=True)
        params = site.engine.requests[-1].params
        assert (params.logprobs, params.logprobs_mode) == (4, "processed_logprobs")
        (choice,) = reply["choices"]
        assert [len(mask) for mask in choice["sampling_mask"]] == [4, 4]
        assert [len(e["top_logprobs"]) for e in choice["logprobs"]["content"]] == [1, 1]
        for fields, param in (
            ({"top_k": 9}, "sampling_params.top_k"),
            ({"top_p": 0.5}, "sampling_params.top_k"),
            ({"top_k": 2, "logprobs_mode": "raw_logprobs"}, "sampling_params.logprobs_mode"),
        ):
            error = await refused(site, sampling_params=fields, return_sampling_mask=True)
            assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -2]}, "token_ids"),
        ({"token_ids": [100000]}, "token_ids"),
        ({"sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"sampling_params": {"max_tokens": 100000}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs"),
        ({"sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"sampling_params": {"stop_token_ids": [300]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"logit_bias": {"300": 1}}}, "sampling_params.logit_bias"),
        ({"sampling_params": {"logprobs_dtype": "float16"}}, "sampling_params.logprobs_dtype"),
        (
            {"sampling_params": {"structured_outputs": {"regex": "("}}},
            "sampling_params.structured_outputs.regex",
        ),
        ({"features": {}}, "features"),
        ({"output_mode": "derender"}, "output_mode"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_bad_fields_are_named(site: Site, fields: dict[str, Any], param: str) -> None:
    assert (await refused(site, **fields))["param"] == param
