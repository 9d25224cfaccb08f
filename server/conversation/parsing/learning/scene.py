"""The calls of a rendered reply, without what is the conversation's around them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from server.conversation.parsing.format import ReasoningFormat
from server.conversation.parsing.learning.atoms import common_end, common_start
from server.conversation.parsing.learning.calls import CallPlace, find_calls
from server.conversation.parsing.learning.probe import ANSWER, ProbeCall, Prober, probe_calls


@dataclass(frozen=True)
class Scene:
    """A text of calls, from what opens them to what closes them.

    Attributes:
        places: where the calls are in the text.
        wrappers: what is around content, of which none is shown.
    """

    text: str
    places: list[CallPlace]
    wrappers: tuple[str, ...] = ()


class Stage:
    """Renders replies with calls, and cuts them out of their conversations.

    Args:
        reasoning: the format of thoughts, which may be before calls.
        ends: texts of the tokens that end a reply.
    """

    def __init__(
        self, prober: Prober, reasoning: ReasoningFormat | None, ends: Collection[str]
    ) -> None:
        self.prober = prober
        self._reasoning = reasoning
        self._ends = ends
        plain = prober.turn(ANSWER) or ""
        self._head, _, self._tail = plain.partition(ANSWER)
        self._wrapper = self._content_end()

    def _content_end(self) -> str:
        """What ends content, before calls as before a reply's end; mostly nothing."""
        calls = probe_calls(1, self.prober.style)
        text = self.prober.turn(ANSWER, calls) or ""
        content, name = text.find(ANSWER), text.find(calls[0].name)
        return (
            common_start(text[content + len(ANSWER) :], self._tail) if 0 <= content < name else ""
        )

    def scene(
        self, calls: Sequence[ProbeCall], types: Mapping[str, str] | None = None
    ) -> Scene | None:
        """The calls of one reply; None where the template does not show them all."""
        found: list[Scene] = []
        for content in (ANSWER, ""):
            text = self.prober.turn(content, calls, types=types)
            places = None if text is None else find_calls(text, calls)
            if text is None or places is None:
                continue
            at = text.find(ANSWER) if content else -1
            if content and not 0 <= at < places[0].name[0]:
                continue
            begin = at + len(ANSWER) if content else self._head_end(text, places[0])
            scene = self._cut(text[begin:], calls, is_after_content=bool(content))
            found += [] if scene is None else [scene]
        # The one with less before its calls has less of what is not the calls'.
        return min(found, key=lambda scene: scene.places[0].body[0], default=None)

    def _head_end(self, text: str, place: CallPlace) -> int:
        """Where a reply begins in a text without content."""
        heads = (self._head, self.prober.prompt_end)
        end = max(len(common_start(head, text[: place.body[0]])) for head in heads)
        if (thoughts := self._reasoning) is not None:
            closing = text.rfind(thoughts.end, end, place.body[0])
            end = closing + len(thoughts.end) if closing >= 0 else end
        return end

    def _cut(
        self, text: str, calls: Sequence[ProbeCall], *, is_after_content: bool
    ) -> Scene | None:
        """Cut off what follows the calls, and what ends the content before them."""
        if is_after_content:
            text = text[len(self._wrapper) :]
        last = find_calls(text, calls)
        if last is None:
            return None
        reply_end = self._tail[len(self._wrapper) :] or self._tail
        following = text[last[-1].body[1] :]
        shared = common_end(following, reply_end)
        own = text[: len(text) - len(shared)].strip()
        for mark in self._ends:
            own = own.removesuffix(mark).rstrip()
        places = find_calls(own, calls)
        wrappers = (self._wrapper.strip(),) if self._wrapper.strip() else ()
        return None if places is None else Scene(own, places, wrappers)
