"""What readers of bodies share: the loop over their phases."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from server.conversation.parsing.output import Output

Status = Literal["reading", "done", "broken"]
MAX_KEY = 256
"""Longer keys and names are none: what may be one is held back."""
WAIT = -1
"""In place of an end: more text is needed."""
_SPACE = re.compile(r"[ \t\r\n]*")


class PhasedReader:
    """Reads a body phase by phase; each takes what it knows of the text and says what comes next.

    Args:
        phase: the first. It is given a text and a place in it, after white space, and returns how
            far it read, or `WAIT`.

    Attributes:
        status: whether the body goes on, has ended, or is none.
    """

    def __init__(self, output: Output, phase: Callable[[str, int], int]) -> None:
        self.status: Status = "reading"
        self._output = output
        self._phase = phase
        self._reads_space = False  # white space belongs to what the phase reads

    def read(self, text: str, at: int) -> int:
        """Go on from a place; returns how far the text was read."""
        num_chars = len(text)
        while self.status == "reading":
            if at < num_chars and text[at] <= " " and not self._reads_space:
                at = skip_space(text, at, self._output)
            if at == num_chars:
                return at
            end = self._phase(text, at)
            if end == WAIT:
                return at
            at = end
        return at

    def _pass(self, text: str, at: int, phase: Callable[[str, int], int]) -> int:
        """Take one character as markup, and go to a phase."""
        self._output.take(text[at])
        self._phase = phase
        return at + 1


def skip_space(text: str, at: int, output: Output) -> int:
    """Take white space as markup; returns where it ends."""
    if at == len(text) or text[at] > " ":
        return at
    match = _SPACE.match(text, at)
    end = match.end() if match else at
    output.take(text[at:end])
    return end
