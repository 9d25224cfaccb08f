"""What masks hold the replies to a conversation to: calls by grammars, thoughts by their budget.

Calls keep to a grammar where they are required or named, beside strict tools, and beside a format
of the answer.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from engine.messages.request import ThinkingBudget
from server.conversation.call_arguments import ArgumentsWriter
from server.conversation.forced_calls import ReplyOfCalls
from server.conversation.parsing.format import ToolFormat
from server.conversation.parsing.reader import ReplyParsing
from server.conversation.served import ServedChatModel
from server.conversation.spec import ConversationSpec
from server.errors import bad_request
from server.structured.checker import GrammarChecker
from server.structured.spec import NO_CONSTRAINTS, Constraints, GrammarSpec
from server.structured.wanted import two_grammars


class CallsGrammar(NamedTuple):
    """The grammar that a reply's calls keep to.

    Attributes:
        ignored: where keywords of the tools' schemas are not kept to.
        holds_thoughts: thoughts are part of it, so that it begins with the first token.
    """

    spec: GrammarSpec
    ignored: list[str]
    holds_thoughts: bool


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
    calls = await _calls_grammar(spec, served.parsers.tool_format(source), served.grammars)
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


async def _calls_grammar(
    spec: ConversationSpec, tool_format: ToolFormat | None, grammars: GrammarChecker
) -> CallsGrammar | None:
    """The grammar that a reply's calls keep to; None where they are free.

    The answer that a response format asks for is part of it, where the model may give one instead.

    Args:
        tool_format: of the model's calls.

    Raises:
        ApiError: a schema or the format cannot be kept to; too many grammars wait.
    """
    tools, is_forced = spec.callable_tools, spec.tool_choice == "required"
    is_strict = any(tool.strict for tool in tools)
    answer = spec.grammar if spec.grammar and spec.grammar.allows_calls and not is_forced else None
    is_held = is_forced or is_strict or spec.allowed is not None
    if not tools or not (is_held or answer):
        return None
    param = spec.names["tool_choice" if is_forced else "tools" if is_strict else "response_format"]
    if tool_format is None:
        if not is_held:
            return None  # calls are content, which keeps to its format
        raise bad_request(
            param, f"{param}: calls in the format of this model cannot be kept to a grammar"
        )
    writer = ArgumentsWriter(
        tool_format, grammars, drops_keywords=spec.drops_keywords or grammars.is_lenient
    )
    tags = [
        await writer.call(tool, is_strict=is_forced or tool.strict)
        for tool in tools
        if spec.named_tool in (None, tool.name)
    ]
    syntax = tool_format.syntax
    reply = ReplyOfCalls(syntax, tags, is_one=spec.max_calls == 1 or syntax.is_last)
    found = GrammarSpec("structural_tag", None, param)
    if answer is not None:
        found = replace(found, whitespace=answer.whitespace)
        checked = await grammars.check(answer)
        writer.ignored += checked.ignored
        schema = answer.value if checked.reduced is None else checked.reduced
        grammar = reply.or_answer({"type": "json_schema", "json_schema": schema})
    else:
        grammar = reply.alone() if is_forced else reply.in_text()
    return CallsGrammar(replace(found, value=grammar), writer.ignored, syntax.messages is not None)
