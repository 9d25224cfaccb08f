"""gpt-oss (harmony): every message of a reply has a header that names its channel.

    <|channel|>analysis<|message|>They want it.<|end|><|start|>assistant<|channel|>commentary
     to=functions.look <|constrain|>json<|message|>{"at": "it"}<|call|>

The prompt ends in `<|start|>assistant`, so a reply begins inside a header. Thoughts are the channel
`analysis`, a call is a message with a recipient, and all else is content.
"""

from __future__ import annotations

from server.conversation.parsing.format import (
    CONTENT,
    REASONING,
    START,
    Between,
    CallSyntax,
    Exit,
    Field,
    JsonArguments,
    MessageSyntax,
    ReasoningFormat,
    Start,
    Text,
    ToolFormat,
)

BEGIN, CHANNEL, CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
MESSAGE, END, CALL, RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"

_HEADER = (Exit(BEGIN, to="header"), Exit(CHANNEL, to="header"))
_ENDS = tuple(Exit(marker, to="between") for marker in (END, CALL, RETURN))

HARMONY_REASONING = ReasoningFormat(
    names=("openai_gptoss", "openai"),
    recognised_by=((CHANNEL, MESSAGE),),
    begin=f"{CHANNEL}analysis{MESSAGE}",
    end=END,
    answer=f"{CHANNEL}final{MESSAGE}",
    states={
        START: Start((*_HEADER, Exit("to=", to="header", keeps=True), Exit(MESSAGE, to=CONTENT))),
        "header": Field(
            "header",
            (Exit(MESSAGE, to=CONTENT),),
            routes=(
                (r"to=(?:functions\.)?(?P<name>[\w./:-]+)", "call"),
                (r"analysis", REASONING),
                (r"", CONTENT),
            ),
        ),
        CONTENT: Text("content", (*_ENDS, *_HEADER, Exit(MESSAGE, to=CONTENT))),
        REASONING: Text("reasoning", (*_ENDS, *_HEADER)),
        "call": JsonArguments(after="between"),
        "between": Between((*_HEADER, *_ENDS)),
    },
)

HARMONY = ToolFormat(
    names=("openai",),
    recognised_by=((CHANNEL, MESSAGE),),
    states={},
    syntax=CallSyntax(
        begin=f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}",
        end="",  # `<|call|>` is an end of text
        separator=f"{CALL}{BEGIN}assistant",
        trigger=" to=functions.",
        is_last=True,
        messages=MessageSyntax(
            thoughts=f"{CHANNEL}analysis{MESSAGE}",
            remark=f"{CHANNEL}commentary{MESSAGE}",
            end=END,
            separator=f"{BEGIN}assistant",
            answer=f"{CHANNEL}final{MESSAGE}",
        ),
    ),
)
