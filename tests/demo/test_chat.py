"""The chat template: what it writes, how the server recognises it, and that prompts are learned."""

import itertools

from demo.chat import CHAT_TEMPLATE, MARKERS, NO_THOUGHTS, REPLY_BEGIN, prompt_of, reply_of
from demo.dialogues import Json, dialogues
from demo.tokens import TURN_END_ID, VOCAB_SIZE
from server.conversation.parsing.formats.tagged_json import HERMES
from server.conversation.parsing.formats.thinking import QWEN3
from server.conversation.parsing.recognise import knows_tools, reasoning_format_of, tool_format_of
from tests.demo.chat_tokenizer import chat_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "integer"}]}},
        },
    },
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
USER = {"role": "user", "content": "What is 1 plus 2?"}
ASKS = {"role": "assistant", "reasoning_content": "I call add.", "tool_calls": [CALL]}
TOLD = {"role": "tool", "content": "3"}
PROMPT = """\
<|im_start|>system Be brief.<|im_end|>
<|im_start|>tools
{"name": "add", "arguments": {"a": integer, "b": any}}
<|im_end|>
<|im_start|>user What is 1 plus 2?<|im_end|>
<|im_start|>assistant
<think>
I call add.
</think>

<tool_call>
{"name": "add", "arguments": {"a": 1, "b": 2}}
</tool_call><|im_end|>
<tool_response> 3</tool_response>
<|im_start|>assistant
"""


def test_a_conversation_is_written_so() -> None:
    messages: list[Json] = [{"role": "system", "content": "Be brief."}, USER, ASKS, TOLD]
    assert prompt_of(messages, [TOOL]) == PROMPT
    assert prompt_of(messages, [TOOL], thinks=False) == PROMPT + NO_THOUGHTS


def test_thoughts_of_earlier_questions_are_left_out() -> None:
    answer = {"role": "assistant", "reasoning_content": "I know.", "content": "3"}
    assert "think" in prompt_of([USER, answer], [])
    assert "think" not in prompt_of([USER, answer, USER], [])


def test_the_server_recognises_the_formats() -> None:
    assert knows_tools(CHAT_TEMPLATE)
    assert tool_format_of(CHAT_TEMPLATE) is HERMES
    assert reasoning_format_of(CHAT_TEMPLATE) is QWEN3


def test_a_reply_becomes_the_next_message() -> None:
    """What is learned is, character by character, what a later prompt shows of it."""
    for dialogue in itertools.islice(dialogues(3), 200):
        messages = dialogue.history
        for turn in dialogue.turns:
            if turn["role"] == "assistant":
                written = prompt_of(messages, dialogue.tools) + reply_of(messages, turn)
                assert prompt_of([*messages, turn], dialogue.tools) == f"{written}\n{REPLY_BEGIN}"
            messages = [*messages, turn]


def test_markers_are_the_last_ids() -> None:
    tokenizer = chat_tokenizer()
    ids = [tokenizer.encode(marker).ids for marker in MARKERS]
    assert ids == [[VOCAB_SIZE - len(MARKERS) + i] for i in range(len(MARKERS))]
    assert tokenizer.id_to_token(TURN_END_ID) == "<|im_end|>"
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
