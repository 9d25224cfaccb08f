"""Thoughts between `<think>` and `</think>`: Qwen 3, DeepSeek R1 and V3.1, GLM.

    <think>
    They want it.
    </think>

    Here it is.

Many templates open the thoughts in the prompt; a reply then begins inside them. White space around
the markers is markup.
"""

# ruff: noqa: RUF001

from __future__ import annotations

from server.conversation.parsing.format import ReasoningFormat

BEGIN, END = "<think>", "</think>"

DEEPSEEK_V3_REASONING = ReasoningFormat(
    names=("deepseek_v3",),
    recognised_by=(("<｜Assistant｜>", END, "thinking"),),
    begin=BEGIN,
    end=END,
    opened_by_prompt=True,
)
DEEPSEEK_R1 = ReasoningFormat(
    names=("deepseek_r1",),
    recognised_by=(("<｜Assistant｜>", END),),
    begin=BEGIN,
    end=END,
    begins_open=True,
)
GLM45_REASONING = ReasoningFormat(
    names=("glm45",), recognised_by=(("[gMASK]", END),), begin=BEGIN, end=END
)
QWEN3 = ReasoningFormat(names=("qwen3",), recognised_by=((END,),), begin=BEGIN, end=END)
