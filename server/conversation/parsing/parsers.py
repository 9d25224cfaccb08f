"""The parsers of one server: formats by template or by flag, made ready once."""

from __future__ import annotations

from server.conversation.parsing.format import REASONING, START, ReasoningFormat, ToolFormat
from server.conversation.parsing.formats.known import REASONING_PARSERS, TOOL_PARSERS
from server.conversation.parsing.graph import Graph, make_graph
from server.conversation.parsing.reader import ReplyParsing, ThoughtIds
from server.conversation.parsing.recognise import reasoning_format_of, tool_format_of
from server.conversation.parsing.tokens import vocabulary_of
from server.conversation.parsing.values import ToolTypes
from server.text.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"
_MAX_SOURCES = 64
"""Templates whose formats are remembered: requests may bring their own."""


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
        self._formats: dict[str, tuple[ToolFormat | None, ReasoningFormat | None]] = {}
        self._graphs: dict[tuple[str, str], Graph] = {}
        self._without_calls: dict[tuple[str, str, bool], ReplyParsing] = {}
        self._marker_ids: dict[str, tuple[int, ...]] = {}

    @property
    def leaves_calls(self) -> bool:
        """Whether calls are to be left in the content as they are."""
        return self._tool_call_parser == NONE

    def tool_format(self, source: str) -> ToolFormat | None:
        """The format of calls of a model with this template; None for none, or none known."""
        return self._of(source)[0]

    def reasoning_format(self, source: str) -> ReasoningFormat | None:
        """The format of thoughts of a model with this template; None for none."""
        return self._of(source)[1]

    def _of(self, source: str) -> tuple[ToolFormat | None, ReasoningFormat | None]:
        found = self._formats.get(source)
        if found is None:
            tools, reasoning = self._tool_call_parser, self._reasoning_parser
            found = (
                tool_format_of(source) if tools == AUTO else TOOL_PARSERS.get(tools),
                reasoning_format_of(source)
                if reasoning == AUTO
                else REASONING_PARSERS.get(reasoning),
            )
            if len(self._formats) < _MAX_SOURCES:
                self._formats[source] = found
        return found

    def parsing(
        self,
        source: str,
        types: ToolTypes | None,
        prompt_end: str,
        *,
        continued: str = "",
        shows_special: bool = False,
    ) -> ReplyParsing | None:
        """How the replies to a prompt are taken apart; None where all of them is content.

        Args:
            types: what the tools' schemas say of arguments; None where no calls are looked for.
            prompt_end: the prompt's last characters.
            continued: the text of the message that the reply goes on with; empty for none.
            shows_special: special tokens that are no markers are text.
        """
        tools, reasoning = self._of(source)
        if types is None:
            tools = None
        if tools is None and reasoning is None:
            return None
        graph = self._graph(tools, reasoning)
        state = graph.first_state(prompt_end, continued)
        if tools is not None or reasoning is None:
            return self._made(graph, types or {}, state, shows_special)
        key = (reasoning.names[0], state, shows_special)  # what chats without tools share
        if key not in self._without_calls:
            self._without_calls[key] = self._made(graph, {}, state, shows_special)
        return self._without_calls[key]

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

    def _graph(self, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> Graph:
        key = (tools.names[0] if tools else NONE, reasoning.names[0] if reasoning else NONE)
        if key not in self._graphs:
            self._graphs[key] = make_graph(reasoning, tools, self._vocabulary.special)
        return self._graphs[key]
