"""A format put together of the states of its calls and of what is around them."""

from __future__ import annotations

from dataclasses import replace

from server.conversation.parsing.format import CONTENT, CallSyntax, Exit, ToolFormat
from server.conversation.parsing.learning.atoms import ID, Frame, chunks
from server.conversation.parsing.learning.states import StateMaker, between, is_marked

LEARNED = "learned"
"""The name of every format that a template taught."""


def assemble(
    maker: StateMaker,
    frame: Frame,
    first: str,
    syntax: CallSyntax,
    wrappers: tuple[str, ...],
    leads_by: str = "",
) -> ToolFormat | None:
    """A format of calls.

    Args:
        maker: has the states of a call.
        frame: around what these read.
        first: the state in which a call begins.
        syntax: of the same calls; what shows that they begin is added.
        wrappers: what is around content.
        leads_by: characters of which one begins a reply that is calls, where nothing leads to them.

    Returns:
        None where nothing shows that a call begins.
    """
    if ID in chunks(frame.begin)[-1:]:
        return None
    inner = maker.way(frame.begin, first)
    openers: tuple[Exit, ...] = ()
    marker: Exit | None
    again: Exit | None
    alone: Exit | None = None
    if frame.opening and inner is not None:
        maker.add(between((inner, *_closers(maker, frame))), "section")
        marker, again = maker.marker(frame.opening, "section"), inner
        if is_marked(inner.marker):  # a model may forget what opens the section
            alone = Exit(inner.marker, to=inner.to, eats_space=True)
    else:
        marker = again = maker.marker(frame.opening + frame.begin, first)
    if marker is None:
        trigger = (syntax.opening + syntax.begin).lstrip()[:1]
        if not trigger or trigger not in leads_by:
            return None
        openers = tuple(Exit(mark, to=first, keeps=True) for mark in leads_by)
    else:
        trigger = marker.marker
    maker.add(between((again, marker, *_closers(maker, frame))), "after")
    exits = tuple(way for way in (marker, alone) if way is not None)
    opening = {way.marker for way in exits}
    strays = [own for own in (*maker.markers(), *filter(None, wrappers)) if own not in opening]
    return ToolFormat(
        names=(LEARNED,),
        recognised_by=(),
        syntax=replace(syntax, trigger=trigger, leads=marker is None),
        states=maker.states,
        openers=openers,
        exits=exits,
        strays=tuple(dict.fromkeys(strays)),
    )


def _closers(maker: StateMaker, frame: Frame) -> list[Exit | None]:
    """The exits that the ends of a call, and of all calls, are; content follows the last."""
    ends = chunks(frame.end) + chunks(frame.closing)
    ways = [maker.way(piece, "after") for piece in ends[:-1]]
    return ways + [maker.way(piece, CONTENT) for piece in ends[-1:]]
