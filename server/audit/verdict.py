"""What follows from a choice's derived tokens.

A token is *explained* where it is the derived one, or where errors of logits up to the allowed
noise could make it the winner. Evidence is how seldom tokens that were drawn by anything else would
be explained too: an unrelated draw gives a token of probability p with odds p, and with errors of e
in each logit over T, at both levels of the race, with odds of at most p exp(4 e).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from engine.audit.drawn import DrawnChoice, Redrawn

ROUNDING = 2.0**-17
"""Errors of logits over T that float32 masses of tiles stand for (`sampling.race.MASS_ERROR`)."""
NOISE_BY_DTYPE = {"float32": 1e-3}
"""Allowed error of a logit, in nats: of float32 ten times what chunks of a prompt may differ by."""
NOISE_OF_HALVES = 0.25
"""Of bfloat16 and float16: the demo model's largest gap between bfloat16 and float32 is 0.22."""
LITTLE = 1e-6
"""Odds of an unrelated draw above which tokens that all are explained show little."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is found of one choice.

    Attributes:
        line, index: where it is.
        tokens: how many.
        equal: tokens that are the derived ones.
        explained: others that the allowed noise explains.
        noise: the most that one of these needs, in nats.
        unexplained: the rest.
        first: the position, token and derived token of the first unexplained one; None for none.
        logprob_gap: largest difference between reported and derived raw logprobs; None where the
            reply has none.
        log10_odds: of an unrelated draw of these tokens that would be explained; 0 where greedy.
        log10_fresh: of those of them whose noise drew no token of a choice before.
        refusal: why it could not be audited.
    """

    line: int
    index: int
    tokens: int = 0
    equal: int = 0
    explained: int = 0
    noise: float = 0.0
    unexplained: int = 0
    first: tuple[int, int, int] | None = None
    logprob_gap: float | None = None
    gap_allowed: bool = True
    log10_odds: float = 0.0
    log10_fresh: float = 0.0
    is_greedy: bool = False
    refusal: str | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether nothing speaks against the contract's draw."""
        return self.refusal is None and not self.unexplained and self.gap_allowed

    @property
    def words(self) -> str:
        """What is found, in a sentence."""
        if self.refusal is not None:
            return f"not audited: {self.refusal}"
        if self.first is not None:
            position, token, derived = self.first
            return (
                f"not drawn by this model and seed: {self.unexplained} of {self.tokens} tokens; "
                f"the first at position {position} is {token}, where {derived} is due"
            )
        if not self.gap_allowed:
            return f"not of these weights: its logprobs are {self.logprob_gap:.2g} nats off"
        if self.is_greedy:
            return "what this model gives greedily"
        if self.log10_odds > math.log10(LITTLE):
            return f"fits, but so would another draw with odds of 1e{self.log10_odds:.1f}"
        return "drawn by this model with this seed"


def allowed_noise(given: float | None, dtype: str) -> float:
    """The allowed error of a logit: what was given, or that of a dtype; in nats."""
    return NOISE_BY_DTYPE.get(dtype, NOISE_OF_HALVES) if given is None else given


Noise = tuple[int, int, int]
"""What names the noise of a draw: seed, choice and position."""


def judge(
    choice: DrawnChoice, tokens: Sequence[Redrawn], noise: float, known: set[Noise]
) -> Finding:
    """The verdict on a choice.

    Args:
        tokens: as `engine.audit.redraw` derives them.
        noise: allowed error of a logit, in nats.
        known: what was drawn by in choices before; this one's is added. Draws by the same noise
            are not independent, and prove nothing more.
    """
    temperature = choice.params.temperature
    allowed = max(noise, ROUNDING * temperature)
    needed = [token.noise for token in tokens if token.noise > 0.0]
    explained = [each for each in needed if each <= allowed]
    wrong = [token for token in tokens if token.noise > allowed]
    first = wrong[0] if wrong else None
    gap = None
    if choice.logprobs is not None:
        gap = max((token.gap for token in tokens), default=0.0)
    log_odds = fresh_odds = 0.0
    if not choice.params.greedy:
        assert choice.params.seed is not None, "a choice without a seed is refused"
        slack = allowed / temperature
        own = {
            (choice.params.seed, choice.choice, token.position): min(0.0, token.logprob + 4 * slack)
            for token in tokens
        }
        log_odds = sum(own.values())
        fresh_odds = sum(odds for key, odds in own.items() if key not in known)
        known.update(own)
    return Finding(
        line=choice.line,
        index=choice.index,
        tokens=len(tokens),
        equal=len(tokens) - len(needed),
        explained=len(explained),
        noise=max(explained, default=0.0),
        unexplained=len(wrong),
        first=None if first is None else (first.position, first.token, first.derived),
        logprob_gap=gap,
        # A logprob moves by at most twice what logits do, and is rounded to float32 twice.
        gap_allowed=gap is None or gap <= 2 * allowed + 1e-5,
        log10_odds=log_odds / math.log(10),
        log10_fresh=fresh_odds / math.log(10),
        is_greedy=choice.params.greedy,
    )
