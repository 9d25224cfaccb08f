"""`POST /v1/chat/completions` over the fake engine: shapes, streams, logprobs, refusals."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages.step_output import Finish
from server.conversation.parsing.format import Part
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import error_of, in_process
from tests.server.endpoints.chat.chats import HELLO, TEMPLATE, chat, prompt_of, stream


class TestPrompt:
    async def test_it_is_rendered_by_the_template(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            await chat(site, max_tokens=1)
            assert prompt_of(site) == "[user]hello[assistant]"

    async def test_roles_and_parts(self) -> None:
        messages = [
            {"role": "developer", "content": "brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
                "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "42", "tool_call_id": "call_1"},
            {"role": "assistant", "content": None, "refusal": "no"},
        ]
        async with in_process(chat_template=TEMPLATE) as site:
            await chat(site, max_tokens=1, messages=messages)
            assert prompt_of(site) == (
                "[system]brief[user]a\nb[assistant]no[tool]42[assistant]no[assistant]"
            )

    async def test_the_last_message_is_gone_on_with(self) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "It was"}]
        fields: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
        async with in_process(FakeEngine(says(" so")), chat_template=TEMPLATE) as site:
            reply = await chat(site, messages=messages, echo=True, **fields)
            assert prompt_of(site) == "[user]hello[assistant]It was"
            assert reply["choices"][0]["message"]["content"] == "It was so"

    async def test_variables_and_documents(self) -> None:
        source = "{{ mood }}{{ reasoning_effort }}{{ documents[0].text }}"
        async with in_process(chat_template=source) as site:
            await chat(
                site,
                max_tokens=1,
                chat_template_kwargs={"mood": "gay"},
                reasoning_effort="low",
                documents=[{"title": "t", "text": "d"}],
            )
            assert prompt_of(site) == "gaylowd"

    async def test_without_max_tokens_the_rest_of_the_context_may_be_used(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await chat(site)
            prompt_len = len("[user]hello[assistant]")
            assert site.engine.requests[-1].max_tokens == 256 - prompt_len
            assert reply["usage"]["prompt_tokens"] == prompt_len

    async def test_templates_of_requests_need_a_flag(self) -> None:
        own: dict[str, Any] = {"chat_template": "{{ messages[0].content }}"}
        async with in_process(chat_template=TEMPLATE) as site:
            error = await chat(site, 400, **own)
            assert "--trust-request-chat-template" in error["message"]
        async with in_process(trust_request_chat_template=True) as site:
            await chat(site, max_tokens=1, **own)
            assert prompt_of(site) == "hello"


class TestReply:
    async def test_the_shape(self) -> None:
        async with in_process(FakeEngine(says("hi there")), chat_template=TEMPLATE) as site:
            reply = await chat(site)
            assert reply["object"] == "chat.completion"
            assert reply["id"].startswith("chatcmpl-")
            [choice] = reply["choices"]
            assert choice["message"] == {
                "role": "assistant",
                "content": "hi there",
                "refusal": None,
            }
            assert choice["finish_reason"] == "stop"
            assert choice["logprobs"] is None
            assert reply["usage"]["completion_tokens"] == len("hi there") + 1

    async def test_a_stream(self) -> None:
        async with in_process(FakeEngine(says("hi there")), chat_template=TEMPLATE) as site:
            chunks = await stream(site, stream_options={"include_usage": True})
            assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
            *parts, usage = chunks
            deltas = [chunk["choices"][0]["delta"] for chunk in parts]
            assert deltas[0]["role"] == "assistant"
            assert all("role" not in delta for delta in deltas[1:])
            assert "".join(delta.get("content", "") for delta in deltas) == "hi there"
            assert all(delta.get("content", "x") for delta in deltas[1:])  # none is empty
            assert parts[-1]["choices"][0]["finish_reason"] == "stop"
            assert usage["choices"] == []
            assert usage["usage"]["completion_tokens"] == len("hi there") + 1

    async def test_several_choices(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await chat(site, n=3, max_tokens=4)
            contents = [choice["message"]["content"] for choice in reply["choices"]]
            assert contents == ["[use", "user", "ser]"]

    async def test_ids(self) -> None:
        async with in_process(FakeEngine(says("hi")), chat_template=TEMPLATE) as site:
            reply = await chat(site, return_token_ids=True, n=2)
            assert reply["choices"][0]["token_ids"] == [*b"hi", EOS]
            assert bytes(reply["prompt_token_ids"]) == b"[user]hello[assistant]"
            assert reply["prompt_logprobs"] is None
            assert "prompt_token_ids" not in reply["choices"][0]
            plain = await chat(site)
            assert plain["prompt_token_ids"] is plain["choices"][0]["token_ids"] is None
            chunks = await stream(site, return_token_ids=True, n=2)
            [ids] = [c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c]
            assert bytes(ids) == b"[user]hello[assistant]"

    async def test_prompts_are_cut_where_asked(self) -> None:
        async with in_process(FakeEngine(says("hi")), chat_template=TEMPLATE) as site:
            for fields, prompt in (
                ({"truncate_prompt_tokens": 11}, "[assistant]"),
                ({"truncate_prompt_tokens": 6, "truncation_side": "right"}, "[user]"),
                ({"truncate_prompt_tokens": 99}, "[user]hello[assistant]"),
            ):
                await chat(site, **fields)
                assert prompt_of(site) == prompt
            long = [{"role": "user", "content": "x" * 999}]
            await chat(site, messages=long, truncate_prompt_tokens=-1, max_tokens=16)
            assert len(site.engine.requests[-1].prompt_token_ids) == 240
            error = await chat(site, 400, truncate_prompt_tokens=0)
            assert error["param"] == "truncate_prompt_tokens"

    async def test_roles_that_the_template_takes(self) -> None:
        messages = [{"role": "critic", "content": "no"}]
        async with in_process(FakeEngine(says("hi")), chat_template=TEMPLATE) as site:
            await chat(site, messages=messages)
            assert prompt_of(site) == "[critic]no[assistant]"
            error = await chat(site, 400, messages=[{"role": "a b", "content": "no"}])
            assert error["param"] == "messages[0].role"
        picky = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}."
        async with in_process(chat_template=picky) as site:
            error = await chat(site, 400, messages=messages)
            assert error["param"] == "messages[0].role"
            assert "critic" in error["message"]

    async def test_usage_in_every_chunk_where_the_server_says_so(self) -> None:
        engine = FakeEngine(says("hi"))
        async with in_process(engine, chat_template=TEMPLATE, force_include_usage=True) as site:
            chunks = await stream(site)
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert counts == sorted(counts)
            assert counts[-1] == len("hi") + 1

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    async def test_nothing_generated(self, name: str) -> None:
        fields: dict[str, Any] = {name: 0, "logprob_token_ids": [1, 2], "logprobs": True}
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await chat(site, **fields)
            [choice] = reply["choices"]
            assert choice["message"]["content"] == ""
            assert choice["finish_reason"] == "length"
            assert len(choice["logprob_token_ids"]["logprobs"]) == 1
            assert choice["logprobs"]["content"] == choice["logprobs"]["tokens"] == []
            assert reply["usage"]["completion_tokens"] == 0


class TestLogprobs:
    async def test_bytes_join_to_the_content_and_every_token_has_its_part(self) -> None:
        text = "grüße 🙂"
        async with in_process(FakeEngine(says(text)), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, logprobs=True, top_logprobs=2))["choices"]
            logprobs = choice["logprobs"]
            assert (
                bytes(b for entry in logprobs["content"] for b in entry["bytes"]) == text.encode()
            )
            parts = [token["part"] for token in logprobs["tokens"]]
            assert parts == ["content"] * len(text.encode()) + ["markup"]
            assert [t["token_id"] for t in logprobs["tokens"]] == [*text.encode(), EOS]
            assert {len(entry["top_logprobs"]) for entry in logprobs["content"]} == {2}
            assert logprobs["mode"] == "raw_logprobs"

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("include", [False, True])
    async def test_a_stop_token_belongs_to_the_content_where_the_text_has_it(
        self, include: bool, packed: bool
    ) -> None:
        wish: dict[str, Any] = {"stop_token_ids": [ord("!")], "include_stop_str_in_output": include}
        wish |= {"logprobs": True} | ({"logprobs_format": "packed"} if packed else {})
        async with in_process(FakeEngine(says("ab!c")), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, **wish))["choices"]
        assert choice["message"]["content"] == ("ab!" if include else "ab")
        if packed:
            codes = base64.b64decode(choice["logprobs"]["parts"]["data"])
            parts = [get_args(Part)[code] for code in codes]
        else:
            parts = [token["part"] for token in choice["logprobs"]["tokens"]]
            shown = "".join(entry["token"] for entry in choice["logprobs"]["content"])
            assert shown == choice["message"]["content"]
        assert parts == ["content", "content", "content" if include else "markup"]

    async def test_they_are_those_of_a_completion(self) -> None:
        fields: dict[str, Any] = {"max_tokens": 6, "logprob_token_ids": [7, 263, 7]}
        async with in_process(chat_template=TEMPLATE) as site:
            chosen = (await chat(site, logprobs=True, top_logprobs=3, **fields))["choices"][0]
            prompt = [int(i) for i in site.engine.requests[-1].prompt_token_ids]
            plain = (await site.complete(prompt=prompt, logprobs=3, **fields))["choices"][0]
            entries, expected = chosen["logprobs"]["content"], plain["logprobs"]
            assert [e["logprob"] for e in entries] == expected["token_logprobs"]
            assert [e["token"] for e in entries] == expected["tokens"]
            ranks = [token["rank"] for token in chosen["logprobs"]["tokens"]]
            assert ranks == expected["ranks"]
            assert chosen["logprob_token_ids"] == plain["logprob_token_ids"]
            for entry, ids in zip(entries, expected["top_token_ids"], strict=True):
                top = [each["token_id"] for each in entry["top_logprobs"]]
                assert top[:3] == ids[:3]
                assert set(top[3:]) == {entry["token_id"], 7, 263} - set(top[:3])
                assert len(top) == len(set(top))
                values = [each["logprob"] for each in entry["top_logprobs"]]
                assert values[:3] == sorted(values[:3], reverse=True)

    async def test_a_stop_string_keeps_the_tokens_before_it(self) -> None:
        async with in_process(FakeEngine(says("one, two")), chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, logprobs=True, stop=[", t"]))["choices"]
            assert choice["message"]["content"] == "one"
            content = choice["logprobs"]["content"]
            assert bytes(b for entry in content for b in entry["bytes"]) == b"one"
            assert choice["stop_reason"] == ", t"

    async def test_packed(self) -> None:
        fields: dict[str, Any] = {"logprobs": True, "logprobs_format": "packed", "max_tokens": 3}
        async with in_process(chat_template=TEMPLATE) as site:
            [choice] = (await chat(site, **fields))["choices"]
            assert choice["logprobs"]["token_logprobs"]["dtype"] == "<f4"
            assert choice["logprobs"]["token_logprobs"]["shape"] == [3]

    async def test_of_the_prompt(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await chat(site, prompt_logprobs=1, max_tokens=1)
            assert len(reply["prompt_logprobs"]) == len("[user]hello[assistant]")
            assert "prompt_logprobs" not in reply["choices"][0]


SLOW_FIXTURES = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SLOW_FIXTURES
@given(
    text=st.text(max_size=30),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=2),
    interval=st.integers(1, 9),
    n=st.integers(1, 2),
)
async def test_a_joined_stream_equals_the_plain_reply(
    text: str, stop: list[str], interval: int, n: int
) -> None:
    """Whatever number of tokens a chunk has, and wherever characters are cut."""
    fields: dict[str, Any] = {
        "logprobs": True,
        "top_logprobs": 1,
        "return_token_ids": True,
        "n": n,
        "stop": stop or None,
        "seed": 1,
        "max_tokens": 100,
    }
    engine = FakeEngine(says(text, Finish.LENGTH), max_model_len=512)
    async with in_process(engine, chat_template=TEMPLATE) as site:
        plain = await chat(site, **fields)
        chunks = await stream(site, stream_interval=interval, **fields)
    for expected in plain["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == expected["index"]]
        assert (
            "".join(c["delta"].get("content", "") for c in mine) == (expected["message"]["content"])
        )
        for key in ("content", "tokens"):
            joined = [entry for c in mine if c["logprobs"] for entry in c["logprobs"][key]]
            assert joined == expected["logprobs"][key]
        assert [i for c in mine for i in c["token_ids"]] == expected["token_ids"]
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        assert mine[-1]["stop_reason"] == expected["stop_reason"]


class TestRefusals:
    async def test_no_template(self) -> None:
        async with in_process() as site:
            error = await chat(site, 400)
            assert "--chat-template" in error["message"]

    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"messages": []}, "messages", "too short"),
            ({"messages": [{"role": "a robot", "content": "x"}]}, "messages[0].role", "robot"),
            ({"messages": [{"role": "user"}]}, "messages[0].content", "got null"),
            ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a text or"),
            ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "obj"),
            (
                {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
                "messages[0].content[0].text",
                "must be a string, got 3",
            ),
            (
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "tool_calls": [{"function": {"name": "f", "arguments": 3}}],
                        }
                    ]
                },
                "messages[0].tool_calls[0].function.arguments",
                "must be a JSON object",
            ),
            ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
            ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "equal"),
            ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
            (
                {"add_generation_prompt": True, "continue_final_message": True},
                "continue_final_message",
                "add_generation_prompt",
            ),
            (
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "content": "x",
                            "reasoning": "a",
                            "reasoning_content": "b",
                        }
                    ]
                },
                "messages[0].reasoning",
                "another text",
            ),
            (
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "tool_calls": [{"function": {"name": "f", "arguments": "{]"}}],
                        }
                    ]
                },
                "messages[0].tool_calls[0].function.arguments",
                "JSON",
            ),
            ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
            ({"model": "other"}, "model", "other"),
        ],
        ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
    )
    async def test_bad_fields(self, fields: dict[str, Any], param: str | None, words: str) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            error = await chat(site, 404 if "model" in fields else 400, **fields)
            assert param is None or error["param"] == param
            assert words in error["message"]
            assert not site.engine.requests

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "input_image", "image_url": "https://example.org/a.png"},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "image_url"},
        ],
        ids=lambda part: part["type"],
    )
    async def test_parts_that_are_no_text(self, part: dict[str, Any], stream: bool) -> None:
        """The field is named, also after text in a later message; others are served meanwhile."""
        async with in_process(chat_template=TEMPLATE) as site:
            content = [{"type": "text", "text": "What is this?"}, part]
            messages = [*HELLO, {"role": "user", "content": content}]
            error = await chat(site, 400, messages=messages, stream=stream)
            assert error["param"] == "messages[1].content"
            assert part["type"] in error["message"]
            assert "only text is served" in error["message"]
            assert not site.engine.requests
            await chat(site, max_tokens=1)

    async def test_too_long_a_template(self) -> None:
        longest = "{# " + "x" * (2**20 - 6) + " #}"
        async with in_process(chat_template=TEMPLATE) as site:
            error = await chat(site, 400, chat_template=longest + "x")
            assert error["param"] == "chat_template"
            assert "at most 1048576" in error["message"]
            error = await chat(site, 400, chat_template=longest)
            assert "--trust-request-chat-template" in error["message"]

    async def test_too_long_a_conversation(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            messages = [{"role": "user", "content": "x" * 300}]
            error = await chat(site, 400, messages=messages)
            assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
            assert error["message"].startswith("messages must leave room")

    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    async def test_a_limit_that_does_not_fit_is_named_as_the_client_did(self, field: str) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            error = await chat(site, 400, **{field: 250})
            assert (error["param"], error["code"]) == (field, "context_length_exceeded")
            assert error["message"].startswith(f"{field} must be at most 234")


class TestTokenize:
    async def test_a_conversation(self) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await site.client.post("/tokenize", json={"messages": HELLO})
            assert bytes(reply.json()["tokens"]) == b"[user]hello[assistant]"
            body = {"messages": HELLO, "add_generation_prompt": False}
            reply = await site.client.post("/tokenize", json=body)
            assert bytes(reply.json()["tokens"]) == b"[user]hello"

    @pytest.mark.parametrize("fields", [{}, {"prompt": "x", "messages": HELLO}])
    async def test_one_of_text_and_conversation(self, fields: dict[str, Any]) -> None:
        async with in_process(chat_template=TEMPLATE) as site:
            reply = await site.client.post("/tokenize", json=fields)
            assert reply.status_code == 400
            assert "not both" in error_of(reply)["message"]
