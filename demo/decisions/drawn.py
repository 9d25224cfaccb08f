"""Endless decisions of one part, drawn from a seed."""

import random
from collections.abc import Iterator, Mapping

from demo import topics
from demo.decisions.decision import Asked, Decision
from demo.decisions.exchanges import exchange_stated
from demo.decisions.tables import table_stated
from demo.decisions.tickets import Ticket
from demo.dialogues import is_held_out
from server.endpoints.decisions.question import Labels

FAMILIES = {"tickets": 50, "tables": 30, "exchanges": 20}
"""Kinds of states, and how many of 100 are of each."""
LEARNED_FAMILIES = {"tickets": 30, "tables": 55, "exchanges": 15}
"""The same while a model learns: tables take the longest."""
SYSTEM_SHARE = 0.15
BY_OPTIONS_ONE_IN, REORDERED_ONE_IN = 8, 6


def decisions(
    seed: int, *, held_out: bool = False, families: Mapping[str, int] = FAMILIES
) -> Iterator[Decision]:
    """Endless decisions of one part: what is asked decides which, as with dialogues."""
    draw = random.Random(f"decisions {seed} {held_out}")
    while True:
        found = _decision(draw, families)
        if is_held_out(found.asked.content) == held_out:
            yield found


def _decision(draw: random.Random, families: Mapping[str, int]) -> Decision:
    family = draw.choices(list(families), list(families.values()))[0]
    if family == "tickets":
        state, asked = Ticket(draw).stated()
    else:
        state, asked = (table_stated if family == "tables" else exchange_stated)(draw)
    system = draw.choice(topics.SYSTEM_PROMPTS) if draw.random() < SYSTEM_SHARE else None
    by_options = asked.question.kind != "predicate" and draw.randrange(BY_OPTIONS_ONE_IN) == 0
    labels: Labels = "options" if by_options else "letters"
    return Decision(family, state, asked, _order(draw, asked), system, labels)


def _order(draw: random.Random, asked: Asked) -> tuple[int, ...]:
    """Mostly the question's own; `permute` shows others."""
    order = list(range(len(asked.question.options)))
    if draw.randrange(REORDERED_ONE_IN) == 0:
        draw.shuffle(order)
    return tuple(order)
