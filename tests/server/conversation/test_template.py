"""Prompts are what transformers makes of the same messages, and no template holds the server up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo import MODEL_FOLDER
from server.conversation.messages import template_messages
from server.conversation.template import LARGE, LONG_CHARS, ChatTemplate
from server.conversation.template_rendering import Conversation, is_large, make_ready
from server.errors import ApiError
from server.schema.messages import ChatMessage
from server.text.tokenizer import FastTokenizer
from server.work.processes import Preparation, ProcessPool
from tests.fakes import byte_backend
from tests.server.conversation.parsing.learning.templates import FAMILIES, Family

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


@pytest.fixture(scope="module")
def large() -> Iterator[ProcessPool]:
    pool = ProcessPool("large", 1, setup=lambda: Preparation(make_ready))
    yield pool
    pool.close()


MakeTemplate = Callable[..., ChatTemplate]


@pytest.fixture
def made(large: ProcessPool) -> Iterator[MakeTemplate]:
    """Makes templates, and closes them."""
    all_made: list[ChatTemplate] = []

    def make(source: Any, special: Any = SPECIAL, **limits: Any) -> ChatTemplate:
        all_made.append(ChatTemplate(source, special, large, **limits))
        return all_made[-1]

    yield make
    for template in all_made:
        template.close()


BYTES = FastTokenizer(byte_backend(), {})


async def text_of(template: ChatTemplate, source: str, conversation: Conversation) -> str:
    """The prompt's text, by a tokenizer whose ids are its bytes."""
    prompt = await template.encode(source, conversation, BYTES)
    return bytes(prompt.token_ids.tolist()).decode()


async def render(template: ChatTemplate, source: str, conversation: Conversation) -> str | None:
    """The prompt, None where the template refuses."""
    with contextlib.suppress(ApiError):
        return await text_of(template, source, conversation)
    return None


@pytest.mark.parametrize("name", TEMPLATES)
async def test_ids_are_those_of_transformers(name: str, tokenizer: Any, made: MakeTemplate) -> None:
    """Messages that a template refuses are refused by both."""
    source, rendered = TEMPLATES[name], 0
    template = made(source, tokenizer.special_tokens_map)
    for messages in CONVERSATIONS.values():
        given = [ChatMessage.model_validate(message) for message in messages]
        for generation in (True, False):
            conversation = Conversation(template_messages(given), add_generation_prompt=generation)
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


async def test_a_reply_is_gone_on_with(tokenizer: Any, made: MakeTemplate) -> None:
    source = TEMPLATES["qwen2.5-instruct"]
    template = made(source, tokenizer.special_tokens_map)
    messages = [USER, {"role": "assistant", "content": "It was "}]
    conversation = Conversation(messages, add_generation_prompt=False, continue_final_message=True)
    text = await text_of(template, source, conversation)
    assert text.endswith("It was ")
    assert text == tokenizer.apply_chat_template(
        messages, chat_template=source, continue_final_message=True, tokenize=False
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ message.content + '.' if '<' in message.content else '' }}", ""),
        ("{{ 'null' if message['content'] is none else 'text' }}", "null"),
        ("{{ 'null' if message.content is none else message.content + '.' }}", "null"),
        ("{{ 'there' if 'content' in message else 'absent' }}", "absent"),
    ],
)
async def test_a_message_of_calls_alone_is_taken_by_every_template(
    source: str, said: str, made: MakeTemplate
) -> None:
    """Qwen3's first template looks for markers in the content; DeepSeek's asks if it is null."""
    source = f"{{% for message in messages %}}[{source}]{{% endfor %}}"
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert await text_of(made(source, SPECIAL), source, Conversation(messages)) == f"[{said}]"


class TestRefusals:
    async def test_what_a_template_raises_is_told(self, made: MakeTemplate) -> None:
        source = "{{ raise_exception('roles must alternate') }}"
        template = made(source, SPECIAL)
        with pytest.raises(ApiError, match="roles must alternate") as refused:
            await text_of(template, source, Conversation([USER]))
        assert refused.value.status == 400

    @pytest.mark.parametrize(
        "source",
        [
            "{% if %}",
            "{{ messages[7].content.upper() }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.append(1) }}",
        ],
    )
    async def test_broken_and_unsafe_templates(self, made: MakeTemplate, source: str) -> None:
        template = made(source, SPECIAL)
        with pytest.raises(ApiError, match="the chat template refused"):
            await text_of(template, source, Conversation([USER]))

    async def test_no_template(self, made: MakeTemplate) -> None:
        with pytest.raises(ApiError, match="--chat-template"):
            made(None).source(with_tools=False)

    async def test_too_long_a_prompt(self, made: MakeTemplate) -> None:
        source = "{% for i in range(1000) %}0123456789{% endfor %}"
        template = made(source, SPECIAL, max_chars=9999)
        with pytest.raises(ApiError, match="at most 9999 characters, got 10000"):
            await text_of(template, source, Conversation([USER]))


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


class TestTime:
    async def test_an_endless_template_ends_and_others_go_on(self, made: MakeTemplate) -> None:
        role = "{{ messages[0].role }}"
        template = made({"endless": ENDLESS, "role": role}, timeout_s=1.0)
        with pytest.raises(ApiError, match="took longer than"):
            await text_of(template, ENDLESS, Conversation([USER]))
        # The thread is free again: a call that still ran there would let this one time out too.
        assert await text_of(template, role, Conversation([USER])) == "user"

    async def test_time_counts_from_a_calls_own_start(self, made: MakeTemplate) -> None:
        """Each of three has its time, one after another."""
        template = made(ENDLESS, timeout_s=0.4)
        calls = [text_of(template, ENDLESS, Conversation([USER])) for _ in range(3)]
        began = time.monotonic()
        for refusal in await asyncio.gather(*calls, return_exceptions=True):
            assert "took longer than 0.4 s" in str(refusal)
        assert time.monotonic() - began > 3 * 0.4

    async def test_a_long_prompt_holds_up_nobody(self, made: MakeTemplate) -> None:
        """Nothing can interrupt a tokenizer, so no other chat may wait for it."""
        may_go_on = threading.Event()

        class Slow(FastTokenizer):
            def encode(self, text: str, **options: Any) -> list[int]:
                if len(text) > 100:
                    assert may_go_on.wait(10.0)
                return super().encode(text, **options)

        tokenizer = Slow(byte_backend(), {})
        source = "{{ messages[0].content }}"
        template = made(source, SPECIAL, timeout_s=0.5)
        long = Conversation([{"role": "user", "content": "x" * (LONG_CHARS + 1)}])
        encoding = asyncio.create_task(template.encode(source, long, tokenizer))
        for _ in range(3):
            short = Conversation([{"role": "user", "content": "hi"}])
            prompt = await template.encode(source, short, tokenizer)
            assert prompt.token_ids.tolist() == list(b"hi")
        await asyncio.sleep(0.6)  # its time is the template's alone
        may_go_on.set()
        assert len((await encoding).token_ids) == LONG_CHARS + 1

    async def test_a_prompt_that_cannot_fit_is_not_tokenised(self, made: MakeTemplate) -> None:
        class Never(FastTokenizer):
            def encode(self, text: str, **options: Any) -> list[int]:
                raise AssertionError("it was tokenised")

        source = "{{ messages[0].content }}"
        template = made(source, SPECIAL)
        conversation = Conversation([{"role": "user", "content": "x" * 2**17}])
        encoding = template.encode(
            source, conversation, Never(byte_backend(), {}), max_model_len=256
        )
        with pytest.raises(ApiError, match=r"messages must leave room .* got at least") as refused:
            await encoding
        assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")

    async def test_the_loop_goes_on_meanwhile(self, made: MakeTemplate) -> None:
        template = made(ENDLESS, SPECIAL, timeout_s=1.0)
        rendering = asyncio.create_task(text_of(template, ENDLESS, Conversation([USER])))
        ticks = 0
        while not rendering.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks >= 5  # of 100; the thread and the loop take turns at the interpreter
        with pytest.raises(ApiError):
            await rendering


SOURCES = {"default": "plain", "tool_use": "tools", "rag": "documents"}


class TestSeveral:
    def test_by_what_the_request_brings(self, made: MakeTemplate) -> None:
        template = made(SOURCES, SPECIAL, trusts_requests=True)
        assert template.source(with_tools=False) == "plain"
        assert template.source(with_tools=True) == "tools"
        assert template.source(with_tools=True, own="rag") == "documents"
        assert template.source(with_tools=False, own="{{ own }}") == "{{ own }}"

    def test_none_of_them_stands_for_all(self, made: MakeTemplate) -> None:
        with pytest.raises(ApiError, match="rag, sql"):
            made({"rag": "", "sql": ""}).source(with_tools=True)


class TestElsewhere:
    async def test_a_large_conversation_is_the_same_text(self, made: MakeTemplate) -> None:
        source = "{% for m in messages %}{{ m.content }};{% endfor %}{{ x | tojson }}"
        template = made(source)
        for count in (10, LARGE // 4):
            conversation = Conversation([USER] * count, variables={"x": ["ü"]})
            assert is_large(conversation.messages, LARGE) == (count > 10)
            expected = (USER["content"] + ";") * count + '["ü"]'
            assert await text_of(template, source, conversation) == expected

    async def test_a_large_conversation_is_bounded_too(self, made: MakeTemplate) -> None:
        template = made({"endless": ENDLESS, "odd": "{{ x.y.z }}"}, timeout_s=1.0)
        large = Conversation([USER] * LARGE)
        with pytest.raises(ApiError, match="took longer than 1 s"):
            await text_of(template, ENDLESS, large)
        with pytest.raises(ApiError, match="the chat template refused: 'x' is undefined"):
            await text_of(template, "{{ x.y.z }}", large)

    async def test_a_requests_own_template_is_killed(self, made: MakeTemplate) -> None:
        """By time where it is inside one operation, and by memory."""
        template = made("{{ messages[0].content }}", timeout_s=2.0)
        own = {
            "{{ ([1]*(10**8-7))|join|length }}": "took too much memory",
            "{{ ('x' * 9999999).replace('x', 'yy') | upper | sort | length }}": "took ",
            ENDLESS: "took longer than 2 s",
        }
        for source, words in own.items():
            with pytest.raises(ApiError, match=words) as refused:
                await text_of(template, source, Conversation([USER]))
            assert refused.value.status == 400
        assert await text_of(template, "{{ messages | length }}", Conversation([USER])) == "1"


@pytest.mark.parametrize(
    ("value", "extent"),
    [("abc", 3), ([], 0), ([1, "ab"], 4), ({"a": {"b": "c"}}, 5), ([[[]]], 2), (None, 0)],
)
def test_extents(value: Any, extent: int) -> None:
    assert not is_large(value, extent)
    assert extent == 0 or is_large(value, extent - 1)


class TestFormats:
    async def test_a_template_teaches_its_own(self, made: MakeTemplate) -> None:
        source = FAMILIES["numbered"].source
        formats = await made(source, SPECIAL).formats(source)
        assert formats.tools is not None
        assert formats.tools.syntax.opening == "<|tool_calls_section_begin|>"

    async def test_what_ends_a_reply_is_no_marker(self, made: MakeTemplate) -> None:
        """The template ends a turn with calls by another token than one without."""
        source = Family(FAMILIES["function_tag"].calls + "<|eom|>").source
        closings = []
        for ends in ({"<|eom|>"}, set[str]()):
            tools = (await made(source, SPECIAL, ends=ends).formats(source)).tools
            assert tools is not None
            closings.append(tools.syntax.closing)
        assert closings == ["", "<|eom|>"]

    async def test_a_stranger_s_template_is_tried_in_a_process(self, made: MakeTemplate) -> None:
        source = FAMILIES["bare"].source
        formats = await made("other", SPECIAL).formats(source)
        assert formats.tools is not None
        assert formats.tools.syntax.arguments == "fields"

    async def test_one_that_takes_too_long_is_looked_at_alone(self, made: MakeTemplate) -> None:
        source = "{# <tool_call> arguments #}" + ENDLESS
        formats = await made(source, SPECIAL, timeout_s=0.3).formats(source)
        assert formats.tools is not None
        assert formats.tools.names == ("hermes",)

    async def test_arguments_as_the_template_takes_them(self, made: MakeTemplate) -> None:
        calls = "{% for call in calls %}<c>{{ call.function.name + call.function.arguments }}</c>"
        source = Family(calls + "{% endfor %}").source
        template = made(source, SPECIAL)
        conversation = Conversation(CONVERSATIONS["tool"], add_generation_prompt=False)
        assert await render(template, source, conversation) is None
        assert (await template.formats(source)).takes_text
        text = await text_of(template, source, conversation)
        assert '<c>look{"at": "it", "n": 2}</c>' in text
