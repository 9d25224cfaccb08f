"""What templates write around a message, where the reply is read."""

from __future__ import annotations

from typing import Any

import pytest

from demo import MODEL_FOLDER
from server.conversation.parsing.parsers import Parsers
from server.conversation.template import ChatTemplate
from server.conversation.template_rendering import make_ready
from server.errors import ApiError
from server.scoring.frames import ReplyFrame, ReplyFrames
from server.text.tokenizer import Tokenizer, load_tokenizer
from server.work.processes import Preparation, ProcessPool
from tests.fakes import byte_tokenizer

TURN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
BEGIN = "{% if add_generation_prompt %}<assistant>{% endif %}"


async def frame(
    source: str | None,
    content: str = "the state\n\nQuestion: x",
    system: str | None = None,
    tokenizer: Tokenizer | None = None,
    *,
    thinks: bool = False,
) -> ReplyFrame:
    tokenizer = tokenizer or byte_tokenizer()
    tokenizer.reserve(264)
    large = ProcessPool("unused", 1, setup=lambda: Preparation(make_ready))
    template = ChatTemplate(source, {}, large)
    try:
        parsers = Parsers(tokenizer, "auto", "auto")
        return await ReplyFrames(template, parsers).frame(
            content, system, {}, "input", thinks=thinks
        )
    finally:
        template.close()
        large.close()


async def test_a_template() -> None:
    found = await frame(TURN + BEGIN, system="be fair")
    assert found.head == "<system>be fair</system>\n<user>"
    assert found.tail == "</user>\n<assistant>"
    assert (found.space, found.after, found.is_plain) == ("", "</assistant>\n", False)


async def test_a_space_that_replies_begin_with() -> None:
    spaced = TURN.replace("{{ m.content }}", "{{ ' ' if m.role == 'assistant' }}{{ m.content }}")
    assert (await frame(spaced + BEGIN)).space == " "
    after_a_thought = await frame(spaced + BEGIN + "{# <think> </think> #}", thinks=True)
    assert after_a_thought.space == "", "the end of the thought has white space"


async def test_no_template_is_plain() -> None:
    found = await frame(None, system="be fair")
    assert found == ReplyFrame("be fair\n\n", "\nAnswer:", space=" ", is_plain=True)


async def test_the_empty_thought_of_a_template_that_opens_thoughts() -> None:
    opens = TURN + BEGIN.replace("<assistant>", "<assistant><think>\n") + "{# </think> #}"
    assert (await frame(opens)).tail == "</user>\n<assistant><think>\n\n</think>\n\n"


async def test_thoughts_are_off_where_a_template_can() -> None:
    off = TURN + BEGIN + "{% if enable_thinking %}<think>{% endif %}{# </think> #}"
    assert (await frame(off)).tail == "</user>\n<assistant>"


async def test_a_reply_in_a_channel_begins_with_its_header() -> None:
    harmony = TURN + BEGIN + "{# <|channel|> <|message|> #}"
    assert (await frame(harmony)).tail.endswith("<assistant><|channel|>final<|message|>")


@pytest.mark.parametrize(
    "opens",
    ["{% if enable_thinking %}<think>\n{% endif %}", "<think>\n", ""],
    ids=["where it is asked to", "always", "never"],
)
async def test_a_thought_is_opened_once_and_closed(opens: str) -> None:
    found = await frame(TURN + BEGIN + opens + "{# <think> </think> #}", thinks=True)
    assert found.tail == "</user>\n<assistant><think>\n"
    assert found.thought is not None
    assert found.thought.marker == "</think>"
    assert found.end("a b\n") == "</user>\n<assistant><think>\na b\n</think>\n\n"
    assert found.space == ""


async def test_an_answer_after_a_thought_in_a_channel_is_a_message_of_its_own() -> None:
    turn = (
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    )
    begin = "{% if add_generation_prompt %}<|start|>assistant{% endif %}{# <|channel|> #}"
    found = await frame(turn + begin, thinks=True)
    assert found.tail == "<|end|><|start|>assistant<|channel|>analysis<|message|>"
    final = "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert found.end("so") == f"{found.tail}so{final}"


@pytest.mark.parametrize(
    ("source", "system", "words"),
    [
        (TURN.replace("m.content", "m.content | upper") + BEGIN, None, "changes what"),
        ("{{ messages[-1].content }}", "be fair", "no system message"),
        ("{{ raise_exception('no') }}", None, "refused"),
    ],
)
async def test_refused(source: str, system: str | None, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        await frame(source, system=system)
    assert caught.value.param == "input"


async def test_the_demo_model_s_frame_is_its_template_s() -> None:
    from transformers import AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    tokenizer = load_tokenizer(str(MODEL_FOLDER))
    content = "A state.\n\nQuestion: Which?"
    found = await frame(loaded.chat_template, content, tokenizer=tokenizer)
    messages = [{"role": "user", "content": content}]
    whole = loaded.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert f"{found.head}{content}{found.tail}" == whole
    assert found.after == "<|im_end|>\n"
