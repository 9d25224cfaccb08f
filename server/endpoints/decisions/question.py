"""Questions as both endpoints ask them: kinds, options, and in which orders options are shown."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

import orjson

Kind = Literal["predicate", "choice", "score"]
Labels = Literal["letters", "options"]
Value = str | bool
YES, NO = "yes", "no"
MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_ORDERS = 64


@dataclass(frozen=True, slots=True)
class Option:
    """One answer that a question allows.

    Attributes:
        value: a choice's value, a level's label, or `YES` or `NO`.
    """

    value: Value
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        place: where in the request it is, such as "questions[3]".
        options_place: where its options are.
    """

    kind: Kind
    instructions: str
    options: tuple[Option, ...]
    place: str
    options_place: str

    @property
    def shows_options(self) -> bool:
        """Whether its options are listed: those of a predicate only where they are described."""
        return self.kind != "predicate" or any(option.description for option in self.options)

    def texts(self) -> list[str]:
        """The options' values as they are shown; strings in quotes beside booleans."""
        quotes = any(isinstance(option.value, bool) for option in self.options)
        return [
            option.value
            if isinstance(option.value, str) and not quotes
            else orjson.dumps(option.value).decode()
            for option in self.options
        ]


def orders(num_options: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Orders of options, different ones: that of the request first, then drawn by `seed`.

    There are as many as asked for, or as exist.
    """
    rng = random.Random(seed)
    first = tuple(range(num_options))
    found = dict.fromkeys([first])
    while len(found) < min(count, math.factorial(num_options)):
        drawn = list(first)
        rng.shuffle(drawn)
        found.setdefault(tuple(drawn))
    return list(found)
