"""Events of one kind reported at once."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from server.conversation.parsing.output import Event, EventKind
from server.conversation.shaped_render import frames, merged

KINDS: list[EventKind] = ["reasoning", "content", "call", "arguments"]
EVENTS = st.lists(st.builds(Event, st.sampled_from(KINDS), st.text("ab", min_size=1, max_size=2)))


@given(EVENTS)
def test_events_of_one_kind_are_joined_and_calls_are_not(events: list[Event]) -> None:
    found = merged(events)
    for kind, run in groupby(found, key=lambda event: event.kind):
        assert kind == "call" or len(list(run)) == 1

    def shown(events: list[Event]) -> list[tuple[str, str]]:
        """Each character by its kind, and calls whole."""
        return [(k, part) for k, text in events for part in ([text] if k == "call" else text)]

    assert shown(found) == shown(events)


def test_frames_are_named_by_their_type() -> None:
    assert frames([{"type": "a", "x": 1}, {"type": "b"}]) == (
        b'event: a\ndata: {"type":"a","x":1}\n\nevent: b\ndata: {"type":"b"}\n\n'
    )
