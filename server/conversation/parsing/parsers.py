"""The parsers of one server: formats by template or by flag, made ready once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from server.conversation.parsing.format import REASONING, START, ReasoningFormat, ToolFormat
from server.conversation.parsing.formats.known import REASONING_PARSERS, TOOL_PARSERS
from server.conversation.parsing.graph import Graph, make_graph
from server.conversation.parsing.learning.learn import Formats, formats_by_name
from server.conversation.parsing.reader import ReplyParsing, ThoughtIds
from server.conversation.parsing.tokens import vocabulary_of
from server.conversation.parsing.values import ToolTypes
from server.text.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"
_MAX_SOURCES = 64
"""Templates whose formats are remembered: requests may bring their own."""


@dataclass
class _Known:
    """What is known of one template.

    Attributes:
        is_learned: the template has rendered conversations; else its words alone were looked at.
        graphs: by whether calls are looked for, and whether thoughts are.
        without_calls: what chats without tools share, by the state in which a reply begins and
            whether special tokens are shown.
    """

    formats: Formats
    is_learned: bool
    graphs: dict[tuple[bool, bool], Graph] = field(default_factory=dict)
    without_calls: dict[tuple[str, bool], ReplyParsing] = field(default_factory=dict)


class Parsers:
    """Finds the formats of replies and makes them ready.

    Args:
        tokenizer: the model's; it has reserved the model's ids.
        tool_call_parser, reasoning_parser: names of formats, `auto` for those that the template
            asks for, `none` for none.
    """

    def __init__(self, tokenizer: Tokenizer, tool_call_parser: str, reasoning_parser: str) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary_of(tokenizer)
        self._tool_call_parser = tool_call_parser
        self._reasoning_parser = reasoning_parser
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._marker_ids: dict[str, tuple[int, ...]] = {}

    @property
    def leaves_calls(self) -> bool:
        """Whether calls are to be left in the content as they are."""
        return self._tool_call_parser == NONE

    async def learn(self, source: str, learn: Callable[[str], Awaitable[Formats]]) -> None:
        """Let a template show its formats, unless it has; the last 64 are remembered."""
        known = self._known.get(source)
        if known is None or not known.is_learned:
            self._remember(source, await learn(source), is_learned=True)

    def tool_format(self, source: str) -> ToolFormat | None:
        """The format of calls of a model with this template; None for none, or none known."""
        return self._of(source).formats.tools

    def reasoning_format(self, source: str) -> ReasoningFormat | None:
        """The format of thoughts of a model with this template; None for none."""
        return self._of(source).formats.reasoning

    def _of(self, source: str) -> _Known:
        known = self._known.get(source)
        return known or self._remember(source, formats_by_name(source), is_learned=False)

    def _remember(self, source: str, formats: Formats, *, is_learned: bool) -> _Known:
        tools, reasoning = self._tool_call_parser, self._reasoning_parser
        if tools != AUTO:
            formats = formats._replace(tools=TOOL_PARSERS.get(tools))
        if reasoning != AUTO:
            formats = formats._replace(reasoning=REASONING_PARSERS.get(reasoning))
        self._known[source] = known = _Known(formats, is_learned)
        self._known.move_to_end(source)
        if len(self._known) > _MAX_SOURCES:
            self._known.popitem(last=False)
        return known

    def parsing(
        self,
        source: str,
        types: ToolTypes | None,
        prompt_end: str,
        *,
        continued: str = "",
        shows_special: bool = False,
        is_held_to_calls: bool = False,
        separates_reasoning: bool = True,
    ) -> ReplyParsing | None:
        """How the replies to a prompt are taken apart; None where all of them is content.

        Args:
            types: what the tools' schemas say of arguments; None where no calls are looked for.
            prompt_end: the prompt's last characters.
            continued: the text of the message that the reply goes on with; empty for none.
            shows_special: special tokens that are no markers are text.
            is_held_to_calls: the replies are calls alone, beside thoughts.
            separates_reasoning: thoughts are looked for; else they are content with their markers.
        """
        known = self._of(source)
        tools, reasoning, _ = known.formats
        if types is None:
            tools = None
        if not separates_reasoning:
            reasoning = None
        if tools is None and reasoning is None:
            return None
        with_calls = tools is not None
        kind = with_calls, reasoning is not None
        if kind not in known.graphs:
            known.graphs[kind] = make_graph(reasoning, tools, self._vocabulary.special)
        graph = known.graphs[kind]
        state = graph.first_state(prompt_end, continued)
        if with_calls:
            made = self._made(graph, types or {}, state, shows_special)
            return replace(made, is_held_to_calls=True) if is_held_to_calls else made
        key = state, shows_special
        if key not in known.without_calls:
            known.without_calls[key] = self._made(graph, {}, state, shows_special)
        return known.without_calls[key]

    def _made(
        self, graph: Graph, types: ToolTypes, state: str, shows_special: bool
    ) -> ReplyParsing:
        return ReplyParsing(
            graph=graph,
            vocabulary=self._vocabulary,
            types=types,
            state=state,
            shows_special=shows_special,
            thoughts=self._thoughts(graph.reasoning, state),
        )

    def _thoughts(self, reasoning: ReasoningFormat | None, state: str) -> ThoughtIds | None:
        """The markers of thoughts in a reply that begins in a state."""
        if reasoning is None:
            return None
        may_open = not reasoning.opened_by_prompt and state == START
        return ThoughtIds(
            begin=self._ids(reasoning.begin),
            end=self._ids(reasoning.end),
            answer=self._ids(reasoning.answer or reasoning.end),
            are_open=state == REASONING,
            may_come=may_open or state == REASONING,
            may_be_skipped=may_open and not reasoning.answer,
        )

    def _ids(self, marker: str) -> tuple[int, ...]:
        if marker not in self._marker_ids:
            token_ids = self._tokenizer.encode(marker, add_special_tokens=False)
            self._marker_ids[marker] = tuple(token_ids)
        return self._marker_ids[marker]
