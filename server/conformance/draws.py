"""Draws: from the distribution that the server itself reports, by seeds, independently."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from server.conformance.result import Found, NotDoneError
from server.conformance.statistics import ODDS, chi_square, drift_limit
from server.conformance.subject import Json, Subject, TokenLogprob, tokens_of

NUM_DRAWS, NUM_LATER, LATER_TOKENS = 400, 240, 12


def first_tokens(subject: Subject, num: int, fields: Json) -> list[TokenLogprob]:
    """Draw first tokens of the prompt, each by a request of its own without a seed."""
    body = {**fields, "max_tokens": 1, "logprobs": subject.num_top}
    tokens = [tokens_of(choice) for choice in subject.all_choices([body] * num)]
    drawn = [each[0] for each in tokens if each]
    if len(drawn) < num:
        raise NotDoneError("not judged", f"{num - len(drawn)} of {num} draws ended at once")
    return drawn


def distribution(subject: Subject) -> dict[str, float]:
    """The probabilities of the prompt's most likely next tokens, as the server reports them."""
    tokens = tokens_of(subject.choice(max_tokens=1, logprobs=subject.num_top, **subject.neutral))
    if not tokens or not tokens[0].top:
        raise NotDoneError("not judged", "it reports no top logprobs")
    return {name: math.exp(value) for name, value in tokens[0].top.items()}


def counted(drawn: Sequence[TokenLogprob], probabilities: dict[str, float]) -> Found:
    """The test of drawn tokens against probabilities; those left to 1 are other tokens'."""
    p_value, freedom = chi_square(Counter(token.name for token in drawn), probabilities)
    if not freedom:
        raise NotDoneError("not judged", "one token has nearly all of the mass")
    words = f"p = {p_value:.2g}, {freedom} degrees of freedom"
    return Found(passed=p_value >= ODDS, measured=words, wanted=f"p at least {ODDS:g}", odds=ODDS)


def follow_the_distribution(subject: Subject) -> Found:
    """First tokens at temperature 1 without filters follow the reported distribution."""
    probabilities = distribution(subject)
    return counted(first_tokens(subject, NUM_DRAWS, subject.neutral), probabilities)


def defaults_are_neutral(subject: Subject) -> Found:
    """Tokens drawn without any parameter follow it too, as OpenAI's defaults are 1 and 1."""
    probabilities = distribution(subject)
    bodies: list[dict[str, Any]] = [{"max_tokens": 1, "logprobs": subject.num_top}] * NUM_DRAWS
    bodies = [{**body, "temperature": None} for body in bodies]
    drawn = [tokens_of(choice) for choice in subject.all_choices(bodies)]
    return counted([each[0] for each in drawn if each], probabilities)


def temperature_sharpens(subject: Subject) -> Found:
    """At temperature 1/2 probabilities of the most likely tokens are as their squares."""
    squares = {name: p * p for name, p in distribution(subject).items()}
    fields = {**subject.neutral, "temperature": 0.5}
    drawn = [t for t in first_tokens(subject, NUM_DRAWS, fields) if t.name in squares]
    total = sum(squares.values())
    return counted(drawn, {name: square / total for name, square in squares.items()})


def later_tokens_follow_it(subject: Subject) -> Found:
    """Later tokens are the most likely ones as often as their probabilities say.

    Under speculation these are the drafts that were accepted, and what replaced the others.
    """
    fields = {**subject.neutral, "max_tokens": LATER_TOKENS, "logprobs": subject.num_top}
    choices = subject.all_choices([fields] * NUM_LATER)
    hits, chances = 0, []
    for choice in choices:
        for token in tokens_of(choice):
            if token.top:
                best = max(token.top, key=lambda name: token.top[name])
                chances.append(min(math.exp(token.top[best]), 1.0))
                hits += token.name == best
    if not chances:
        raise NotDoneError("not judged", "it reports no top logprobs")
    limit, drift = drift_limit(chances), hits - sum(chances)
    words = f"{hits} of {sum(chances):.0f} due, of {len(chances)}"
    return Found(
        passed=abs(drift) <= limit, measured=words, wanted=f"within {limit:.0f}", odds=ODDS
    )


def seeds_repeat(subject: Subject) -> Found:
    """Equal seeds give equal texts, one after the other and beside others."""
    body = {**subject.neutral, "max_tokens": 16, "seed": 7}
    alone = [subject.choice(**body)["text"] for _ in range(2)]
    others = [{**body, "seed": 1000 + i} for i in range(8)]
    mixed = [body if i % 2 else others[i // 2] for i in range(16)]
    beside = [choice["text"] for choice in subject.all_choices(mixed)][1::2]
    num_other = sum(text != alone[0] for text in [*alone, *beside])
    return Found(passed=not num_other, measured=f"{num_other} of 10 differ", wanted="0")


def other_seeds_differ(subject: Subject) -> Found:
    """Eight other seeds do not all give one text."""
    body = {**subject.neutral, "max_tokens": 16, "logprobs": subject.num_top}
    choices = subject.all_choices([{**body, "seed": seed} for seed in range(8)])
    return _not_all_one(choices)


def choices_of_one_seed_differ(subject: Subject) -> Found:
    """The n choices of a seeded request are draws of their own."""
    fields = {**subject.neutral, "max_tokens": 8, "logprobs": subject.num_top, "seed": 5, "n": 8}
    choices = subject.complete(**fields)["choices"]
    if len(choices) != 8:
        return Found(passed=False, measured=f"{len(choices)} choices", wanted="8")
    return _not_all_one(choices)


def _not_all_one(choices: list[Json]) -> Found:
    """Whether some texts are not all the first one, with the odds that draws give this."""
    logprob = sum(token.logprob for token in tokens_of(choices[0]))
    num_texts = len({choice["text"] for choice in choices})
    odds = math.exp(logprob * (len(choices) - 1))
    words = f"{num_texts} texts"
    return Found(passed=num_texts > 1, measured=words, wanted="more than 1", odds=odds)
