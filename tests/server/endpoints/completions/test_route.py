"""What comes back: choices, usage, and where each choice ends."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from server.endpoints.completions import spec as completion_spec
from server.text.fill_in import FillInMarkers
from server.version import VERSION
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import Site, eventually, in_process


class TestReply:
    async def test_shape(self, site: Site) -> None:
        reply = await site.complete(prompt="hello", max_tokens=7)
        assert reply.pop("id").startswith("cmpl-")
        assert isinstance(reply.pop("created"), int)
        assert reply == {
            "object": "text_completion",
            "model": "fake",
            "choices": [
                {
                    "index": 0,
                    "text": "hellohe",
                    "logprobs": None,
                    "finish_reason": "length",
                    "stop_reason": None,
                    "token_ids": None,
                    "prompt_token_ids": None,
                    "prompt_logprobs": None,
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
            "system_fingerprint": f"tailrace-{VERSION}",
        }

    async def test_a_suffix_needs_markers(self, site: Site) -> None:
        error = await site.refused(prompt="a", suffix="b")
        assert error["param"] == "suffix"
        await site.complete(prompt="a", suffix="")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"echo": True}, "echo"),
            ({"prompt": [1]}, "prompt"),
            ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ],
    )
    async def test_text_is_filled_in(self, fields: dict[str, Any], param: str, site: Site) -> None:
        markers = FillInMarkers("<", "|", ">")
        with patch.object(completion_spec, "fill_in_markers", lambda tokenizer: markers):
            request = await site.submitted(prompt="a", suffix="b")
            assert bytes(request.prompt_token_ids.tolist()) == b"<a|b>"
            error = await site.refused(**{"prompt": "a", "suffix": "b", **fields})
        assert error["param"] == param

    async def test_prompts_times_n(self, site: Site) -> None:
        reply = await site.complete(prompt=["ab", "cde"], n=2, max_tokens=3)
        assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
        assert [choice["text"] for choice in reply["choices"]] == ["aba", "bab", "cde", "dec"]
        assert reply["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}

    @pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
    async def test_prompt_forms(self, site: Site, prompt: Any) -> None:
        reply = await site.complete(prompt=prompt, max_tokens=2)
        assert reply["choices"][0]["text"] == "ab"

    async def test_max_tokens_defaults_to_16(self, site: Site) -> None:
        for body in ({}, {"max_tokens": None}):
            assert (await site.complete(prompt="a", **body))["usage"]["completion_tokens"] == 16

    async def test_max_tokens_zero_generates_and_bills_nothing(self, site: Site) -> None:
        reply = await site.complete(prompt="ab", max_tokens=0)
        assert reply["choices"][0]["text"] == ""
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] == 0
        assert site.engine.requests[-1].max_tokens == 1, "drawn and dropped"

    async def test_cached_tokens_are_told_when_enabled(self) -> None:
        async with in_process(prompt_tokens_details=True) as site:
            reply = await site.complete(prompt="abcd", max_tokens=1)
        assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}

    async def test_request_id_names_the_reply_and_duplicates_do_no_harm(self, site: Site) -> None:
        replies = [await site.complete(prompt="a", request_id="mine") for _ in range(2)]
        assert [reply["id"] for reply in replies] == ["cmpl-mine", "cmpl-mine"]
        handles = [request.handle for request in site.engine.requests]
        assert len(set(handles)) == 2

    async def test_model_must_be_served(self, site: Site) -> None:
        error = await site.refused(404, model="other", prompt="a")
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert "served here: fake" in error["message"]

    async def test_model_may_be_left_out(self, site: Site) -> None:
        assert (await site.complete(model=None, prompt="a"))["model"] == "fake"


class TestEnds:
    async def test_eos(self) -> None:
        async with in_process(FakeEngine(says("hi"))) as site:
            reply = await site.complete(prompt="x", return_token_ids=True)
        choice = reply["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("hi", "stop")
        assert choice["stop_reason"] is None
        assert choice["token_ids"] == [104, 105, EOS]
        assert reply["usage"]["completion_tokens"] == 3

    async def test_eos_shown_when_asked(self) -> None:
        async with in_process(FakeEngine(says("hi"))) as site:
            reply = await site.complete(
                prompt="x", include_stop_str_in_output=True, skip_special_tokens=False
            )
        assert reply["choices"][0]["text"] == "hi<eos>"

    async def test_stop_token_id(self, site: Site) -> None:
        choice = (await site.complete(prompt="abc", stop_token_ids=[99]))["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
        assert choice["stop_reason"] == 99
        body = {"prompt": "abc", "stop_token_ids": [99], "include_stop_str_in_output": True}
        assert (await site.complete(**body))["choices"][0]["text"] == "abc"

    async def test_ignore_eos(self) -> None:
        async with in_process(FakeEngine(says("hi"))) as site:
            reply = await site.complete(prompt="x", ignore_eos=True, max_tokens=5)
            assert site.engine.requests[0].params.stop_token_ids == ()
        assert reply["choices"][0]["finish_reason"] == "length"

    @pytest.mark.parametrize(
        ("body", "text", "reason"),
        [
            ({"stop": "d"}, "abc", "d"),
            ({"stop": ["x", "cd"]}, "ab", "cd"),
            ({"stop": "cd", "include_stop_str_in_output": True}, "abcd", "cd"),
            ({"stop": "fa"}, "abcde", "fa"),
            ({"stop": "a"}, "", "a"),
            ({"stop": "a", "min_tokens": 2}, "abcdef", "a"),
            ({"stop": "bc", "min_tokens": 2}, "a", "bc"),  # begins before, ends after
            ({"stop": "zz"}, "abcdefabcdefabcd", None),
        ],
    )
    async def test_stop_strings(
        self, site: Site, body: dict[str, Any], text: str, reason: str | None
    ) -> None:
        choice = (await site.complete(prompt="abcdef", **body))["choices"][0]
        assert (choice["text"], choice["stop_reason"]) == (text, reason)
        assert choice["finish_reason"] == ("stop" if reason else "length")

    async def test_a_stop_string_drops_tokens_that_begin_after_the_cut(self, site: Site) -> None:
        reply = await site.complete(prompt="abcdef", stop="bc", logprobs=0, return_token_ids=True)
        choice = reply["choices"][0]
        assert choice["token_ids"] == [97]
        assert choice["logprobs"]["tokens"] == ["a"]
        assert choice["logprobs"]["text_offset"] == [0]
        assert reply["usage"]["completion_tokens"] == 3  # up to the one that completed it

    async def test_a_stop_string_ends_the_choice_at_the_engine(self) -> None:
        """At once, while its siblings go on."""
        engine = FakeEngine(lambda _r, choice, _p: 97 + choice, step_s=0.001)
        async with in_process(engine) as site:
            asking = asyncio.create_task(site.complete(prompt="x", stop="b", n=2, max_tokens=200))
            await eventually(lambda: engine.stats is not None and engine.stats.num_running == 1)
            assert [choice for _, choice in engine.aborted] == [1]
            assert not asking.done()
            texts = [choice["text"] for choice in (await asking)["choices"]]
        assert texts == ["a" * 200, ""]

    async def test_a_character_split_over_tokens_is_whole(self) -> None:
        async with in_process(FakeEngine(says("né"))) as site:
            reply = await site.complete(prompt="x", logprobs=0)
        assert reply["choices"][0]["text"] == "né"
        logprobs = reply["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["n", "\ufffd", "\ufffd", "<eos>"]
        assert logprobs["text_offset"] == [0, 1, 1, 2]
        assert b"".join(map(bytes, logprobs["bytes"][:-1])).decode() == "né"
