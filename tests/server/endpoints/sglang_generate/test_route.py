"""SGLang's `/generate` over the fake engine, whose tokens are bytes."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest

from engine.contracts.adapters import NamedAdapter
from engine.contracts.control import EngineState
from engine.messages.step_output import Finish
from server.endpoints.sglang_generate.render import GenerateRenderer
from server.endpoints.sglang_generate.reply_schema import GenerateReply
from tests.fakes import EOS, FakeEngine, routes_of, says
from tests.server.conftest import Site, chunks_of, error_of, in_process
from tests.server.written_ahead import note_written_ahead

PROMPT = list(b"hello")


async def generated(site: Site, **body: Any) -> Any:
    reply = await site.client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    parsed = reply.json()
    for each in parsed if isinstance(parsed, list) else [parsed]:
        GenerateReply.model_validate(each)
    return parsed


async def test_what_slime_reads_of_a_reply(site: Site) -> None:
    """Ids in, and `output_token_logprobs` as triples, with the reason of the end."""
    params = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 3,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    reply = await generated(
        site, input_ids=PROMPT, sampling_params=params, return_logprob=True, rid="r1"
    )
    meta = reply["meta_info"]
    entries = meta["output_token_logprobs"]
    assert [entry[1] for entry in entries] == reply["output_ids"] == PROMPT[:3]
    assert all(isinstance(entry[0], float) and entry[2] is None for entry in entries)
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 3)
    assert (meta["id"], meta["weight_version"]) == ("r1", "default")
    (same,) = (await site.complete(prompt=PROMPT, max_tokens=3, logprobs=0))["choices"]
    assert [entry[0] for entry in entries] == same["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("options", [{"top_logprobs_num": 2}, {"token_ids_logprob": [98, 5]}])
async def test_logprobs_written_ahead_join_the_rest(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = note_written_ahead(monkeypatch, GenerateRenderer)
    fields: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 120}}
    fields |= {"return_logprob": True, "rid": "r1", "logprob_start_len": 1, **options}
    async with in_process(FakeEngine(says("aéb" * 40))) as site:
        reply = await generated(site, **fields)
        assert len(ahead) >= 2
        monkeypatch.setattr(GenerateRenderer, "due", lambda *_: [])
        once = await generated(site, **fields)
    for each in (reply, once):
        del each["meta_info"]["e2e_latency"]
    assert reply == once
    entries = reply["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in entries] == reply["output_ids"] == list(b"a\xc3\xa9b" * 30)


async def test_ends() -> None:
    for then, wanted in (
        (EOS, {"type": "stop", "matched": EOS}),
        (Finish.CANCELED, "abort"),
    ):
        async with in_process(FakeEngine(says("ab", then=then))) as site:
            reply = await generated(site, text="x")
            end = reply["meta_info"]["finish_reason"]
            assert (end if isinstance(wanted, dict) else end["type"]) == wanted
            assert reply["output_ids"][:2] == list(b"ab")


async def test_logprobs_of_the_prompt_begin_without_a_value(site: Site) -> None:
    wanted = {"max_new_tokens": 0}
    reply = await generated(
        site,
        input_ids=PROMPT,
        sampling_params=wanted,
        return_logprob=True,
        logprob_start_len=2,
        top_logprobs_num=1,
        token_ids_logprob=[7],
        return_text_in_logprobs=True,
    )
    meta = reply["meta_info"]
    (same,) = (await site.complete(prompt=PROMPT, max_tokens=0, echo=True, logprobs=1))["choices"]
    values = [None, *same["logprobs"]["token_logprobs"][3:]]
    wanted_entries = [[v, i, chr(i)] for v, i in zip(values, PROMPT[2:], strict=True)]
    assert meta["input_token_logprobs"] == wanted_entries
    assert meta["input_top_logprobs"][0] is meta["input_token_ids_logprobs"][0] is None
    assert len(meta["input_top_logprobs"]) == len(meta["input_token_ids_logprobs"]) == 3
    assert meta["completion_tokens"] == 0


@pytest.mark.parametrize("prompt", [PROMPT, [65]])
async def test_the_last_token_of_the_prompt_alone(site: Site, prompt: list[int]) -> None:
    asked: dict[str, Any] = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}}
    asked |= {"return_logprob": True, "top_logprobs_num": 1}
    meta = (await generated(site, **asked, logprob_start_len=len(prompt) - 1))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, prompt[-1], None]]
    assert meta["input_top_logprobs"] == [None]
    assert len(meta["output_token_logprobs"]) == 1
    reply = await site.client.post("/generate", json=asked | {"logprob_start_len": len(prompt)})
    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, "logprob_start_len")
    assert f"below the prompt's {len(prompt)} tokens, got {len(prompt)}" in error["message"]


async def test_batches_are_lists_in_order(site: Site) -> None:
    params = {"max_new_tokens": 1}
    batch = await generated(
        site, input_ids=[PROMPT, [65]], sampling_params=[params, params], rid=["a", "b"]
    )
    assert [each["meta_info"]["id"] for each in batch] == ["a", "b"]
    assert [request.name for request in site.engine.requests] == ["a", "b"], "to be aborted by"
    assert [each["output_ids"] for each in batch] == [PROMPT[:1], [65]]
    several = await generated(site, text="xy", sampling_params={"max_new_tokens": 1, "n": 2})
    assert [each["text"] for each in several] == ["x", "y"]


async def test_a_stream_s_events_have_all_there_is_so_far(site: Site) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 3}, "return_logprob": True}
    plain = await generated(site, **body)
    reply = await site.client.post("/generate", json=body | {"stream": True})
    chunks = chunks_of(reply.text)
    assert [chunk["text"] for chunk in chunks] == ["h", "he", "hel"]
    for key in ("output_token_logprobs", "finish_reason", "weight_versions"):
        assert chunks[-1]["meta_info"][key] == plain["meta_info"][key]


async def test_routed_experts_are_raw_numbers() -> None:
    engine = FakeEngine()
    engine.info = msgspec.structs.replace(engine.info, num_routed=4)
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3}}
    async with in_process(engine) as site:
        assert "routed_experts" not in (await generated(site, **body))["meta_info"]
        wish = {"return_routed_experts": True, "return_routed_expert_weights": True}
        meta = (await generated(site, **body, **wish, routed_experts_start_len=1))["meta_info"]
        routes = routes_of(engine.requests[-1], 0, 3)
        ids = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=np.int32)
        assert ids.reshape(len(PROMPT) + 3 - 1 - 1, -1).tolist() == routes.ids[:, :, 0].tolist()
        weights = np.frombuffer(base64.b64decode(meta["routed_expert_weights"]), dtype=np.float32)
        assert routes.weights is not None
        assert weights.tolist() == routes.weights.ravel().tolist()
        for fields, param in (
            ({"return_routed_expert_weights": True}, "return_routed_expert_weights"),
            (wish | {"routed_experts_start_len": 6}, "routed_experts_start_len"),
        ):
            reply = await site.client.post("/generate", json=body | fields)
            assert (reply.status_code, error_of(reply)["param"]) == (400, param)


async def test_an_adapter_is_asked_for_by_its_name() -> None:
    async with in_process(enable_lora=True) as site:
        adapter = NamedAdapter("sql", "/adapters/sql", 1, "0123456789abcdef")
        site.engine.state = EngineState(adapters=(adapter,))
        await generated(site, input_ids=PROMPT, lora_path="sql")
        assert site.engine.requests[-1].adapter == "sql"
        body = {"input_ids": PROMPT, "lora_path": "no"}
        reply = await site.client.post("/generate", json=body)
        assert (reply.status_code, error_of(reply)["param"]) == (400, "lora_path")
        assert "(sql)" in error_of(reply)["message"]


async def test_parameters_have_our_names(site: Site) -> None:
    schema = orjson.dumps({"type": "object"}).decode()
    params = {"sampling_seed": 5, "min_new_tokens": 1, "top_k": -1, "max_new_tokens": 2}
    await generated(site, text="x", sampling_params=params, extra_key="s")
    request = site.engine.requests[-1]
    assert (request.params.seed, request.params.min_tokens, request.params.top_k) == (5, 1, 0)
    assert (request.cache_salt, request.max_tokens) == ("s", 2)
    await generated(site, text="x", sampling_params={"json_schema": schema, "max_new_tokens": 1})
    assert site.engine.requests[-1].grammar is not None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_ids"),
        ({"text": "x", "input_ids": [1]}, "input_ids"),
        ({"text": [1, 2]}, "text"),
        ({"text": "x", "sampling_params": {"max_tokens": 3}}, "sampling_params"),
        ({"text": "x", "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "x", "return_routed_experts": True}, "return_routed_experts"),
        ({"text": ["x", "y"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"text": "x", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema"),
        ({"text": ["x", "y"], "rid": ["a"]}, "rid"),
        ({"text": "x", "rid": ["a", "b"]}, "rid"),
        ({"input_ids": [1, 2], "rid": []}, "rid"),
    ],
)
async def test_bad_fields_are_named(site: Site, body: dict[str, Any], param: str) -> None:
    reply = await site.client.post("/generate", json=body)
    assert reply.status_code == 400
    assert (error_of(reply)["param"] or "").startswith(param)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"sampling_params": {"seed": 1}}, "sampling_params.seed", "unknown field"),
        ({"sampling_params": {"top_p": 2}}, "sampling_params.top_p", "must be at most 1, got 2"),
        ({"sampling_params": [{"n": 0}]}, "sampling_params[0].n", "must be at least 1, got 0"),
        ({"sampling_params": 5}, "sampling_params", "must be an object, got 5"),
        ({"rid": 5}, "rid", "must be a string, got 5"),
        ({"rid": ["a", 5]}, "rid[1]", "must be a string, got 5"),
        ({"return_logprob": "x"}, "return_logprob", 'must be true or false, got "x"'),
        ({"sampling_params": {"stop_token_ids": [300]}}, "sampling_params.stop_token_ids", "300"),
        ({"sampling_params": {"logit_bias": {"300": 1}}}, "sampling_params.logit_bias", "300"),
        ({"sampling_params": {"json_schema": "5"}}, "sampling_params.json_schema", "got 5"),
        ({"sampling_params": {"json_schema": "null"}}, "sampling_params.json_schema", "got null"),
        ({"sampling_params": {"regex": "("}}, "sampling_params.regex", "unclosed group"),
        ({"sampling_params": {"ebnf": "("}}, "sampling_params.ebnf", "is no GBNF"),
        ({"return_logprob": True, "token_ids_logprob": [300]}, "token_ids_logprob", "id 300"),
    ],
)
async def test_a_field_is_named_as_its_clients_have_it(
    site: Site, fields: dict[str, Any], param: str, words: str
) -> None:
    reply = await site.client.post("/generate", json={"text": "x", **fields})
    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert param in error["message"]
    assert "be a list" not in error["message"], "of types that the value is not nothing is said"
