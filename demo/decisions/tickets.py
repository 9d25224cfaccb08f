"""Tickets of customers: whom they are for, how urgent they are, how the writer feels."""

import random
from collections.abc import Callable

from demo.decisions import words
from demo.decisions.decision import Asked, choice, predicate, score
from server.endpoints.decisions.question import Option

Stated = tuple[str, Asked]
"""A state, and what is asked about it."""


class Ticket:
    """Draws one ticket, and a question about it.

    A ticket says what it is about, and may say how urgent it is and how its writer feels, in any
    order. What it is asked for is said; the rest may be left out.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._team = draw.choice(words.TEAMS)
        self._urgency = draw.randrange(len(words.URGENCIES))
        self._mood = draw.randrange(len(words.MOODS))
        thing = draw.choice(self._team.slots)
        self._problem = draw.choice(self._team.problems).format(it=thing)
        self._hurry = draw.choice(words.URGENCIES[self._urgency])
        if draw.random() < 0.3:
            it = draw.choice(words.THINGS)
            self._feeling = draw.choice(words.REVIEWS[self._mood]).format(it=it)
        else:
            self._feeling = draw.choice(words.MOODS[self._mood])

    def stated(self) -> Stated:
        """The ticket's text and one question."""
        questions: dict[Callable[[], Asked | None], int] = {
            self._route: 36,
            self._about: 16,
            self._urgent: 12,
            self._how_urgent: 12,
            self._feels: 12,
            self._how_happy: 12,
        }
        ask = self._draw.choices(list(questions), list(questions.values()))[0]
        while (asked := ask()) is None:
            pass
        needed = {
            self._problem: ask in (self._route, self._about),
            self._hurry: ask in (self._urgent, self._how_urgent),
            self._feeling: ask in (self._feels, self._how_happy),
        }
        return self._text(needed), asked

    def _text(self, needed: dict[str, bool]) -> str:
        """Sentences in any order between a greeting and an end, each of which may be missing."""
        draw = self._draw
        said = [each for each, is_needed in needed.items() if is_needed or draw.random() < 0.5]
        draw.shuffle(said)
        if draw.random() < 0.4:
            said.insert(0, draw.choice(words.GREETINGS))
        if draw.random() < 0.4:
            said.append(draw.choice(words.ENDS).format(name=draw.choice(words.NAMES)))
        return draw.choice((" ", " ", "\n")).join(said)

    def _route(self) -> Asked:
        draw = self._draw
        others = [team for team in words.TEAMS if team is not self._team]
        teams = [self._team, *draw.sample(others, draw.randint(1, len(others)))]
        describe, anonymous = draw.random() < 0.5, draw.random() < 0.1
        options = []
        for number, team in enumerate(teams):
            name, description = draw.choice(team.names), draw.choice(team.descriptions)
            if anonymous:
                options.append(Option(f"team {number + 1}", description))
            else:
                options.append(Option(name, description if describe else None))
        return choice(
            draw,
            draw.choice(words.ROUTE_QUESTIONS),
            options,
            content=self._problem,
            thought=f"It says: {self._problem} This is for {options[0].value}.",
        )

    def _about(self) -> Asked:
        draw = self._draw
        holds = draw.random() < 0.5
        others = [team for team in words.TEAMS if team is not self._team]
        team = self._team if holds else draw.choice(others)
        return predicate(
            draw,
            draw.choice(team.claims),
            holds=holds,
            content=self._problem,
            thought=f"It says: {self._problem}",
        )

    def _claimed(
        self, claims: tuple[tuple[str, tuple[bool | None, ...]], ...], strength: int, said: str
    ) -> Asked | None:
        claim, truths = self._draw.choice(claims)
        if (holds := truths[strength]) is None:
            return None
        content = f"{claim} {self._problem if len(said) < 8 else said}"
        return predicate(
            self._draw, claim, holds=holds, content=content, thought=f"It says: {said}"
        )

    def _urgent(self) -> Asked | None:
        return self._claimed(words.URGENCY_CLAIMS, self._urgency, self._hurry)

    def _feels(self) -> Asked | None:
        return self._claimed(words.MOOD_CLAIMS, self._mood, self._feeling)

    def _rated(
        self,
        levels: tuple[tuple[tuple[str, ...], tuple[int | None, ...]], ...],
        questions: tuple[str, ...],
        strength: int,
        said: str,
    ) -> Asked | None:
        names, places = self._draw.choice(levels)
        if (level := places[strength]) is None:
            return None
        question = self._draw.choice(questions)
        content = f"{question} {' '.join(names)} {said}"
        return score(question, names, level, content=content, thought=f"It says: {said}")

    def _how_urgent(self) -> Asked | None:
        return self._rated(
            words.URGENCY_LEVELS, words.URGENCY_QUESTIONS, self._urgency, self._hurry
        )

    def _how_happy(self) -> Asked | None:
        return self._rated(words.MOOD_LEVELS, words.MOOD_QUESTIONS, self._mood, self._feeling)
