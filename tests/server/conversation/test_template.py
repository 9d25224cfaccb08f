"""Prompts are what transformers makes of the same messages, and no template holds the server up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo import MODEL_FOLDER
from server.conversation.messages import template_messages
from server.conversation.template import LONG_CHARS, ChatTemplate, Conversation
from server.errors import ApiError
from server.schema.messages import ChatMessage
from server.text.tokenizer import FastTokenizer
from tests.fakes import byte_backend

TEMPLATES = {
    path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

USER = {"role": "user", "content": "Who wrote this?\n  And when?"}
ASSISTANT = {"role": "assistant", "content": "Nobody knows. ü 🙂"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": " then? "}],
    "long": [USER, ASSISTANT] * 200 + [USER],
    "named": [USER | {"name": "Ada"}],
    "two users": [USER, USER],
    "tool": [
        USER,
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "look", "arguments": {"at": "it", "n": 2}},
                    "id": "call_1",
                }
            ],
        },
        {"role": "tool", "content": "found", "tool_call_id": "call_1"},
    ],
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


async def render(template: ChatTemplate, source: str, conversation: Conversation) -> str | None:
    """The prompt, None where the template refuses."""
    with contextlib.suppress(ApiError):
        return await template.render(source, conversation)
    return None


@pytest.mark.parametrize("name", TEMPLATES)
async def test_ids_are_those_of_transformers(name: str, tokenizer: Any) -> None:
    """Messages that a template refuses are refused by both."""
    source, rendered = TEMPLATES[name], 0
    template = ChatTemplate(source, tokenizer.special_tokens_map)
    for messages in CONVERSATIONS.values():
        given = [ChatMessage.model_validate(message) for message in messages]
        for generation in (True, False):
            conversation = Conversation(
                template_messages(given, source), add_generation_prompt=generation
            )
            text = await render(template, source, conversation)
            try:
                expected = tokenizer.apply_chat_template(
                    messages,
                    chat_template=source,
                    add_generation_prompt=generation,
                    tokenize=True,
                    return_dict=False,
                )
            except Exception:
                assert text is None
                continue
            assert text is not None
            assert tokenizer.encode(text, add_special_tokens=False) == expected
            rendered += 1
    assert rendered >= 6
    template.close()


async def test_a_reply_is_gone_on_with(tokenizer: Any) -> None:
    source = TEMPLATES["qwen2.5-instruct"]
    template = ChatTemplate(source, tokenizer.special_tokens_map)
    messages = [USER, {"role": "assistant", "content": "It was "}]
    conversation = Conversation(messages, add_generation_prompt=False, continue_final_message=True)
    text = await template.render(source, conversation)
    assert text.endswith("It was ")
    assert text == tokenizer.apply_chat_template(
        messages, chat_template=source, continue_final_message=True, tokenize=False
    )
    template.close()


class TestRefusals:
    async def test_what_a_template_raises_is_told(self) -> None:
        source = "{{ raise_exception('roles must alternate') }}"
        template = ChatTemplate(source, SPECIAL)
        with pytest.raises(ApiError, match="roles must alternate") as refused:
            await template.render(source, Conversation([USER]))
        assert refused.value.status == 400
        template.close()

    @pytest.mark.parametrize(
        "source",
        [
            "{% if %}",
            "{{ messages[7].content.upper() }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.append(1) }}",
        ],
    )
    async def test_broken_and_unsafe_templates(self, source: str) -> None:
        template = ChatTemplate(source, SPECIAL)
        with pytest.raises(ApiError, match="the chat template refused"):
            await template.render(source, Conversation([USER]))
        template.close()

    async def test_no_template(self) -> None:
        with pytest.raises(ApiError, match="--chat-template"):
            ChatTemplate(None, SPECIAL).source(with_tools=False)

    async def test_too_long_a_prompt(self) -> None:
        source = "{% for i in range(1000) %}0123456789{% endfor %}"
        template = ChatTemplate(source, SPECIAL, max_chars=9999)
        with pytest.raises(ApiError, match="at most 9999 characters, got 10000"):
            await template.render(source, Conversation([USER]))
        template.close()


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


class TestTime:
    async def test_an_endless_template_ends_and_others_go_on(self) -> None:
        template = ChatTemplate(ENDLESS, SPECIAL, timeout_s=1.0)
        with pytest.raises(ApiError, match="took longer than"):
            await template.render(ENDLESS, Conversation([USER]))
        # The thread is free again: a call that still ran there would let this one time out too.
        assert await template.render("{{ messages[0].role }}", Conversation([USER])) == "user"
        template.close()

    async def test_a_long_prompt_holds_up_nobody(self) -> None:
        """Nothing can interrupt a tokenizer, so no other chat may wait for it."""
        may_go_on = threading.Event()

        class Slow(FastTokenizer):
            def encode(self, text: str, **options: Any) -> list[int]:
                if len(text) > 100:
                    assert may_go_on.wait(10.0)
                return super().encode(text, **options)

        tokenizer = Slow(byte_backend(), {})
        source = "{{ messages[0].content }}"
        template = ChatTemplate(source, SPECIAL, timeout_s=0.5)
        long = Conversation([{"role": "user", "content": "x" * (LONG_CHARS + 1)}])
        encoding = asyncio.create_task(template.encode(source, long, tokenizer))
        for _ in range(3):
            short = Conversation([{"role": "user", "content": "hi"}])
            prompt = await template.encode(source, short, tokenizer)
            assert prompt.token_ids.tolist() == list(b"hi")
        await asyncio.sleep(0.6)  # its time is the template's alone
        may_go_on.set()
        assert len((await encoding).token_ids) == LONG_CHARS + 1
        template.close()

    async def test_a_prompt_that_cannot_fit_is_not_tokenised(self) -> None:
        class Never(FastTokenizer):
            def encode(self, text: str, **options: Any) -> list[int]:
                raise AssertionError("it was tokenised")

        source = "{{ messages[0].content }}"
        template = ChatTemplate(source, SPECIAL)
        conversation = Conversation([{"role": "user", "content": "x" * 2**17}])
        encoding = template.encode(
            source, conversation, Never(byte_backend(), {}), max_model_len=256
        )
        with pytest.raises(ApiError, match=r"messages must leave room .* got at least") as refused:
            await encoding
        assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
        template.close()

    async def test_the_loop_goes_on_meanwhile(self) -> None:
        template = ChatTemplate(ENDLESS, SPECIAL, timeout_s=1.0)
        rendering = asyncio.create_task(template.render(ENDLESS, Conversation([USER])))
        ticks = 0
        while not rendering.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks >= 5  # of 100; the thread and the loop take turns at the interpreter
        with pytest.raises(ApiError):
            await rendering
        template.close()


SOURCES = {"default": "plain", "tool_use": "tools", "rag": "documents"}


class TestSeveral:
    def test_by_what_the_request_brings(self) -> None:
        template = ChatTemplate(SOURCES, SPECIAL)
        assert template.source(with_tools=False) == "plain"
        assert template.source(with_tools=True) == "tools"
        assert template.source(with_tools=True, own="rag") == "documents"
        assert template.source(with_tools=False, own="{{ own }}") == "{{ own }}"

    def test_none_of_them_stands_for_all(self) -> None:
        with pytest.raises(ApiError, match="rag, sql"):
            ChatTemplate({"rag": "", "sql": ""}, SPECIAL).source(with_tools=True)
