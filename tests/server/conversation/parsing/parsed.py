"""Replies taken apart, cut in any way, and what was found in them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import groupby

from server.conversation.parsing.graph import Graph, make_graph
from server.conversation.parsing.machine import Machine
from server.conversation.parsing.output import Event, Span
from tests.server.conversation.parsing.corpus import Style

Parsed = tuple[list[Event], list[Span]]


@cache
def graph_of(style: Style) -> Graph:
    return make_graph(style.reasoning, style.tools, {})


def parse(style: Style, chunks: Iterable[str]) -> Parsed:
    """The events of a reply, neighbours of one kind joined, and its spans."""
    graph = graph_of(style)
    machine = Machine(graph, {}, graph.first_state("", ""))
    for chunk in chunks:
        machine.feed(chunk)
    machine.finish()
    events: list[Event] = []
    for kind, group in groupby(machine.output.events, key=lambda event: event.kind):
        texts = [event.text for event in group]
        events += map(Event, [kind] * len(texts), texts) if kind == "call" else []
        events += [] if kind == "call" else [Event(kind, "".join(texts))]
    return events, machine.output.spans


def text_of(events: list[Event], kind: str) -> str:
    return "".join(event.text for event in events if event.kind == kind)


def calls_of(events: list[Event]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for kind, text in events:
        if kind == "call":
            calls.append((text, ""))
        elif kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return calls
