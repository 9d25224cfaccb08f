"""Questions as both endpoints ask them: about which state, their options, and how they are read."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import orjson

Kind = Literal["predicate", "choice", "score"]
Labels = Literal["letters", "options"]
Value = str | bool
YES, NO = "yes", "no"
MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_ORDERS = 64


class Option(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class State:
    """What questions are about.

    Attributes:
        text: the user's side of it.
        system: what is put in front of it as the system's message; None for nothing.
        place: the request's field.
    """

    text: str
    system: str | None
    place: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How questions are read.

    Attributes:
        labels: what options are read by.
        num_orders, seed: options are shown in so many orders, drawn by the seed.
        budget: tokens of a thought before each prompt is read; None for no thought.
        variables: `chat_template_kwargs`.
        priority, cache_salt: as `ScoringRequest` has them.
    """

    labels: Labels = "letters"
    num_orders: int = 1
    seed: int = 0
    budget: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str = ""


def orders(num_options: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Orders of options, different ones: that of the request first, then drawn by `seed`.

    There are as many as asked for, or as exist.
    """
    first = tuple(range(num_options))
    if count == 1:
        return [first]
    rng, found = random.Random(seed), dict.fromkeys([first])
    while len(found) < min(count, math.factorial(num_options)):
        drawn = list(first)
        rng.shuffle(drawn)
        found.setdefault(tuple(drawn))
    return list(found)


def emptied(state: State) -> State:
    """The state of a question that is asked without one."""
    return replace(state, text="")
