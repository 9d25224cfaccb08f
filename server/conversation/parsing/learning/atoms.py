"""Texts cut where markers may be cut: at tags, words and white space."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ID = "{id}"
"""Replaces a call's id, or for its number among the calls, in the texts around calls."""

_ATOM = re.compile(r"\{id\}|<[^<>\s]*>?|\w+|\s+|.", re.DOTALL)
_CHUNK = re.compile(r"\{id\}|(?:<[^<>\n]*>?|(?!\{id\})[^\s<])+")


def atoms(text: str) -> list[str]:
    """A text as tags, words, white space and single characters."""
    return _ATOM.findall(text)


def chunks(text: str) -> list[str]:
    """A text without its white space: what is between it. Tags are not cut within."""
    return _CHUNK.findall(text)


def common_start(first: str, second: str) -> str:
    """What two texts begin with alike, in whole atoms; numbers that differ are ids."""
    return "".join(_common(atoms(first), atoms(second)))


def common_end(first: str, second: str) -> str:
    """What two texts end with alike, in whole atoms; numbers that differ are ids."""
    return "".join(reversed(_common(atoms(first)[::-1], atoms(second)[::-1])))


def _common(first: Sequence[str], second: Sequence[str]) -> list[str]:
    found: list[str] = []
    for one, other in zip(first, second, strict=False):
        if one == other:
            found.append(one)
        elif is_number(one) and is_number(other):
            found.append(ID)
        else:
            break
    return found


def is_number(atom: str) -> bool:
    """Whether an atom is a call's number or id."""
    return atom == ID or atom.isdigit()


def length_of(pattern: str, text: str, *, at_end: bool = False) -> int:
    """How many characters a common part has in one of its texts, where ids may be longer."""
    count, own = len(atoms(pattern)), atoms(text)
    return len("".join(own[len(own) - count :] if at_end else own[:count]))


@dataclass(frozen=True)
class Frame:
    """What is around calls.

    Attributes:
        opening, closing: before the first and after the last.
        begin, end: around each.
        separator: between two.
        is_alone: a reply has one call at most.
    """

    opening: str
    begin: str
    separator: str
    end: str
    closing: str
    is_alone: bool = False


def frame_of(before: str, between: str | None, after: str) -> Frame:
    """Tell what belongs to each call from what belongs to all.

    Args:
        between: what is between two calls; None where a reply has one at most.
    """
    if between is None:
        return Frame("", before, "", after, "", is_alone=True)
    begin = common_end(between, before)
    rest = between[: len(between) - length_of(begin, between, at_end=True)]
    end = common_start(rest, after)
    separator = rest[length_of(end, rest) :]
    opening = before[: len(before) - length_of(begin, before, at_end=True)]
    return Frame(opening, begin, separator, end, after[length_of(end, after) :])
