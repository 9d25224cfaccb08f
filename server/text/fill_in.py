"""Markers by which a model fills in what lies between two texts ("fill in the middle")."""

from __future__ import annotations

from typing import NamedTuple

from server.text.tokenizer import Tokenizer


class FillInMarkers(NamedTuple):
    """Markers of one model family.

    Attributes:
        before, after: they lead the text before what is filled in, and the text after it.
        here: it leads what is filled in, or with `in_place` is where that would be, with
            `after` at the end.
    """

    before: str
    after: str
    here: str
    in_place: bool = False

    def prompt(self, text: str, suffix: str) -> str:
        """The prompt whose continuation lies between two texts."""
        if self.in_place:
            return f"{self.before}{text}{self.here}{suffix}{self.after}"
        return f"{self.before}{text}{self.after}{suffix}{self.here}"


_KNOWN = (
    FillInMarkers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, Gemma, Granite 4
    FillInMarkers("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite 3
    FillInMarkers("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FillInMarkers("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    FillInMarkers(
        "<\uff5cfim\u2581begin\uff5c>",
        "<\uff5cfim\u2581end\uff5c>",
        "<\uff5cfim\u2581hole\uff5c>",
        in_place=True,
    ),  # DeepSeek
)


def fill_in_markers(tokenizer: Tokenizer) -> FillInMarkers | None:
    """The markers that a tokenizer has as tokens; None where it lacks one of each kind."""
    for markers in _KNOWN:
        own = (markers.before, markers.after, markers.here)
        if all(len(tokenizer.encode(text, add_special_tokens=False)) == 1 for text in own):
            return markers
    return None
