"""Conversations that are too long lose their oldest turns."""

from __future__ import annotations

import pytest

from server.conversation.spec import ConversationSpec
from server.conversation.template_rendering import Message
from server.conversation.truncation import fitting_prompt, shortened
from server.errors import ApiError, ClientNames
from tests.fakes import FakeEngine
from tests.server.conftest import in_process

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
SYSTEM: Message = {"role": "system", "content": "S"}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str, role: str = "assistant") -> Message:
    return {"role": role, "content": text}


def texts(messages: list[Message]) -> str:
    return "".join(message["content"] for message in messages)


def test_the_oldest_turns_go_first() -> None:
    turns = [SYSTEM, user("a"), said("b"), user("c"), said("d"), user("e")]
    assert [texts(each.of(turns)) for each in shortened(turns)] == ["Scde", "Se"]
    turns.insert(1, said("D", "developer"))
    assert [texts(each.of(turns)) for each in shortened(turns)] == ["SDcde", "SDe"]


def test_the_last_turn_loses_its_oldest_calls_with_their_outputs() -> None:
    loop = [user("a"), said("b"), said("1", "tool"), said("c"), said("2", "tool"), said("d")]
    assert [texts(each.of(loop)) for each in shortened(loop)] == ["ac2d", "ad"]


def test_nothing_to_leave_out() -> None:
    assert shortened([]) == []
    assert shortened([SYSTEM]) == []
    assert shortened([user("a")]) == []


async def prompt_of(messages: list[Message], max_tokens: int | None, context: int = 64) -> str:
    engine = FakeEngine(max_model_len=context)
    async with in_process(engine, chat_template=TEMPLATE) as site:
        spec = ConversationSpec(names=ClientNames(messages="input"), model=None, messages=messages)
        prompt = await fitting_prompt(spec, site.context, max_tokens)
    return bytes(prompt.token_ids.tolist()).decode()


TURNS = [each for i in range(30) for each in (user(f"{i:02}"), said("x"))] + [user("now")]


@pytest.mark.parametrize("max_tokens", [None, 1, 20, 40])
async def test_as_much_as_leaves_room(max_tokens: int | None) -> None:
    found = await prompt_of(TURNS, max_tokens)
    room = 64 - (8 if max_tokens is None else max_tokens)
    assert len(found) <= room
    assert found.endswith("[user]now[assistant]")
    assert found.startswith("[user]")
    turn = len("[user]00[assistant]x")
    assert len(found) + turn > room


async def test_what_fits_is_whole() -> None:
    assert await prompt_of([user("a"), said("b")], 4) == "[user]a[assistant]b[assistant]"


@pytest.mark.parametrize(("max_tokens", "room"), [(None, 56), (40, 24), (63, 1), (999, 1)])
async def test_a_last_turn_that_is_too_long(max_tokens: int | None, room: int) -> None:
    """A limit above the context leaves room for a token of the prompt, as the context itself."""
    with pytest.raises(ApiError) as caught:
        await prompt_of([user("a"), user("x" * 99)], max_tokens)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
    assert f"more than {room} " in caught.value.message


async def test_other_refusals_stay() -> None:
    async with in_process() as site:
        spec = ConversationSpec(names=ClientNames(), model=None, messages=[user("a")])
        with pytest.raises(ApiError) as caught:
            await fitting_prompt(spec, site.context, None)
    assert "no chat template" in caught.value.message
