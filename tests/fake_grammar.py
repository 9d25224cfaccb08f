"""Texts that the fake engine draws under a request's grammar, by llguidance's own matcher."""

from __future__ import annotations

import random

from llguidance import LLMatcher, LLTokenizer

from engine.config import GrammarLimits
from engine.request import Finish, Request
from engine.structured.limits import parser_limits
from tests.fakes import EOS, Script, byte_backend

LIKED = frozenset(b'"{}[],:0123456789truefalsn')
"""Bytes that are drawn eight times as often as others, so that texts come to an end."""


def follows_grammar(seed: int = 0) -> Script:
    """A script that draws at random what the grammar allows, and ends where it must."""
    tokenizer = LLTokenizer(byte_backend().to_str(), 259, [EOS])
    matchers: dict[tuple[int, int], tuple[LLMatcher, random.Random]] = {}

    def draw(request: Request, choice: int, position: int) -> int | Finish:
        assert request.grammar is not None
        assert request.params.constrained
        key = (request.handle, choice)
        if key not in matchers:
            limits = parser_limits(GrammarLimits())
            made = LLMatcher(tokenizer, request.grammar.source, log_level=0, limits=limits)
            matchers[key] = (made, random.Random(f"{seed} {choice} {request.params.seed}"))
        matcher, rng = matchers[key]
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(259) if mask[i >> 3] >> (i & 7) & 1]
        assert not matcher.is_error(), matcher.get_error()
        weights = [8 if i in LIKED else 40 if i == EOS else 1 for i in allowed]
        drawn: int = rng.choices(allowed, weights)[0]
        assert matcher.consume_token(drawn), matcher.get_error()
        return drawn

    return draw
