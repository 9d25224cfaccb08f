"""Every format, those first whose recognition is the more special."""

from __future__ import annotations

from server.conversation.parsing.format import ReasoningFormat, ToolFormat
from server.conversation.parsing.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from server.conversation.parsing.formats.glm45 import GLM45
from server.conversation.parsing.formats.granite import GRANITE
from server.conversation.parsing.formats.harmony import HARMONY, HARMONY_REASONING
from server.conversation.parsing.formats.kimi_k2 import KIMI_K2
from server.conversation.parsing.formats.lfm2 import LFM2
from server.conversation.parsing.formats.llama3_json import LLAMA3_JSON
from server.conversation.parsing.formats.mistral import MISTRAL, MISTRAL_REASONING
from server.conversation.parsing.formats.pythonic import PYTHONIC
from server.conversation.parsing.formats.qwen3_coder import QWEN3_CODER
from server.conversation.parsing.formats.tagged_json import HERMES, NEMOTRON, PHI4
from server.conversation.parsing.formats.thinking import (
    DEEPSEEK_R1,
    DEEPSEEK_V3_REASONING,
    GLM45_REASONING,
    QWEN3,
)

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    *(HARMONY, QWEN3_CODER, GLM45, DEEPSEEK_V3, DEEPSEEK_V31, MISTRAL, PHI4, PYTHONIC),
    *(LLAMA3_JSON, LFM2, GRANITE, KIMI_K2, NEMOTRON, HERMES),
)
REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    *(HARMONY_REASONING, MISTRAL_REASONING, DEEPSEEK_V3_REASONING, DEEPSEEK_R1),
    *(GLM45_REASONING, QWEN3),
)

TOOL_PARSERS = {name: known for known in TOOL_FORMATS for name in known.names}
REASONING_PARSERS = {name: known for known in REASONING_FORMATS for name in known.names}
