"""What masks hold a chat's replies to: calls by their grammar, thoughts by their budget."""

from __future__ import annotations

from collections.abc import Sequence

from engine.request import ThinkingBudget
from server.conversation.forced_calls import calls_grammar
from server.conversation.parsing.parsers import Parsers
from server.conversation.parsing.reader import ReplyParsing, ThoughtIds
from server.endpoints.chat.schema import ChatRequest
from server.errors import bad_request
from server.generation.prepare import NO_CONSTRAINTS, Constraints
from server.schema.tools import Tool
from server.structured.checker import GrammarChecker


async def chat_constraints(
    body: ChatRequest,
    source: str,
    tools: Sequence[Tool],
    parsing: ReplyParsing | None,
    parsers: Parsers,
    grammars: GrammarChecker,
) -> Constraints:
    """What holds the replies to a chat; raises `ApiError` for what cannot.

    A grammar begins behind the thoughts, or with the first token where that opens none.

    Args:
        source: the chat's template.
        tools: those that may be called.
    """
    asked = body.response_format, body.structured_outputs, body.thinking_token_budget
    if not tools and asked == (None, None, None):  # most chats
        return NO_CONSTRAINTS
    thoughts = None if parsing is None else parsing.thoughts
    calls = await calls_grammar(body, tools, parsers.tool_format(source), grammars)
    budget = _budget(body, source, thoughts, parsers, grammars)
    waits = thoughts is not None and thoughts.may_come
    if calls is not None and calls.holds_thoughts:
        waits = False
    return Constraints(
        calls=None if calls is None else calls.spec,
        ignored=[] if calls is None else calls.ignored,
        after=thoughts.answer if thoughts and waits else (),
        unless_opened=thoughts.begin if thoughts and waits and thoughts.may_be_skipped else (),
        budget=budget,
    )


def _budget(
    body: ChatRequest,
    source: str,
    thoughts: ThoughtIds | None,
    parsers: Parsers,
    grammars: GrammarChecker,
) -> ThinkingBudget | None:
    num_tokens, param = body.thinking_token_budget, "thinking_token_budget"
    if num_tokens is None:
        return None
    if parsers.reasoning_format(source) is None:
        raise bad_request(
            param,
            f"{param} needs a model whose thoughts are known by their markers, which the chat "
            "template does not show: start the server with --reasoning-parser",
        )
    grammars.check_served(param)
    if thoughts is None:
        return None  # nothing is generated
    return ThinkingBudget(
        num_tokens=num_tokens, begin=thoughts.begin, end=thoughts.end, are_open=thoughts.are_open
    )
