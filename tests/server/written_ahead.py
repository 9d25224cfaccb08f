"""What a renderer writes while choices of a plain reply still grow."""

from __future__ import annotations

import pytest

from server.generation.choice import ReplyChoice
from server.generation.render import Renderer


def note_written_ahead(monkeypatch: pytest.MonkeyPatch, kind: type[Renderer]) -> list[ReplyChoice]:
    """The choices that renderers of a kind write ahead from now on, in order, as they come."""
    ahead: list[ReplyChoice] = []
    write_ahead = kind.write_ahead

    def noting(renderer: Renderer, choices: list[ReplyChoice]) -> None:
        ahead.extend(choices)
        write_ahead(renderer, choices)

    monkeypatch.setattr(kind, "write_ahead", noting)
    return ahead
