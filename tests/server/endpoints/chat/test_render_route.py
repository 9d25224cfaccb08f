"""`/v1/chat/completions/render` over the fake engine."""

from __future__ import annotations

from typing import Any

from tests.server.conftest import Site, error_of, in_process

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "hi"}]


async def rendered(site: Site, **body: Any) -> Any:
    path = "/v1/chat/completions/render"
    return await site.client.post(path, json={"messages": MESSAGES, **body})


async def test_what_is_rendered_generates_what_the_chat_does() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 3,
        "temperature": 0.5,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 1,
        "logit_bias": {"65": 1.5},
        "structured_outputs": {"regex": "[a-z]+"},
        "cache_salt": "s",
        "prompt_logprobs": 1,
        "prompt_logprob_token_ids": [65, 66],
        "logprob_token_ids": [65, 5],
    }
    async with in_process(chat_template=TEMPLATE) as site:
        reply = await rendered(site, **fields)
        body = reply.json()
        assert bytes(body["token_ids"]) == b"<user>hi"
        again = await site.client.post("/inference/v1/generate", json=body)
        assert again.status_code == 200, again.text
        chat = {"messages": MESSAGES, **fields}
        await site.client.post("/v1/chat/completions", json=chat)
        first, second = site.engine.requests
        assert first.params == second.params
        assert first.prompt_token_ids.tolist() == second.prompt_token_ids.tolist()
        assert (first.max_tokens, first.cache_salt) == (second.max_tokens, second.cache_salt)
        assert first.grammar == second.grammar
        assert first.prompt_logprobs == second.prompt_logprobs


async def test_ids_of_each_position_are_rendered_as_they_were_given() -> None:
    given = [[65, 66], [67, -1], *[[68, 69]] * 5]
    async with in_process(chat_template=TEMPLATE) as site:
        reply = await rendered(site, prompt_logprob_token_ids=given)
    assert reply.status_code == 200, reply.text
    assert reply.json()["sampling_params"]["prompt_logprob_token_ids"] == given


async def test_grammars_that_ids_cannot_carry_are_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    async with in_process(chat_template=TEMPLATE) as site:
        reply = await rendered(site, response_format={"type": "json_object"})
        assert error_of(reply)["param"] == "response_format"
        reply = await rendered(site, tools=[tool], tool_choice="required")
        assert reply.status_code == 400
