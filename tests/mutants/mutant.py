"""A mutant: a plausible bug of one line, and the tests that must fail with it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A bug to be put in.

    Attributes:
        name: what is wrong, in a few words with hyphens.
        path: the file it is put into.
        old: text that is there exactly once.
        new: text that takes its place.
        tests: pytest ids, at least one of which must fail.
        interpreted: whether the tests run in Triton's interpreter.
        seen: issues of other servers that were this bug.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    interpreted: bool = False
    seen: tuple[str, ...] = ()
