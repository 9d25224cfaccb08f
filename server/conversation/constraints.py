"""What masks hold the replies to a conversation to: calls by grammars, thoughts by their budget."""

from __future__ import annotations

from engine.request import ThinkingBudget
from server.conversation.forced_calls import calls_grammar
from server.conversation.parsing.reader import ReplyParsing
from server.conversation.served import ServedChatModel
from server.conversation.spec import ConversationSpec
from server.structured.spec import NO_CONSTRAINTS, Constraints
from server.structured.wanted import two_grammars


async def reply_constraints(
    spec: ConversationSpec, source: str, parsing: ReplyParsing | None, served: ServedChatModel
) -> Constraints:
    """What holds the replies to a conversation; raises `ApiError` for what cannot.

    A grammar begins after the thoughts, or with the first token where that opens none.

    Args:
        source: the conversation's template.
    """
    grammar = spec.grammar
    if not spec.callable_tools and grammar is None and spec.thinking_budget is None:
        return NO_CONSTRAINTS  # most conversations
    thoughts = None if parsing is None else parsing.thoughts
    calls = await calls_grammar(spec, served.parsers.tool_format(source), served.grammars)
    budget = None
    if spec.thinking_budget is not None:
        if served.parsers.reasoning_format(source) is None:
            raise spec.names.refuse(
                "thinking_budget",
                "needs a model whose thoughts are known by their markers, which the chat template "
                "does not show: start the server with --reasoning-parser",
            )
        served.grammars.check_served(spec.names["thinking_budget"])
        if thoughts is not None:  # else nothing is generated
            budget = ThinkingBudget(
                num_tokens=spec.thinking_budget,
                begin=thoughts.begin,
                end=thoughts.end,
                are_open=thoughts.are_open,
            )
    waits = thoughts is not None and thoughts.may_come
    ignored: list[str] = []
    if calls is not None:
        if grammar is not None and not grammar.allows_calls:
            raise two_grammars(calls.spec, grammar.param)
        grammar, ignored = calls.spec, calls.ignored
        waits = waits and not calls.holds_thoughts
    return Constraints(
        grammar=grammar,
        ignored=ignored,
        after=thoughts.answer if thoughts and waits else (),
        unless_opened=thoughts.begin if thoughts and waits and thoughts.may_be_skipped else (),
        budget=budget,
    )
