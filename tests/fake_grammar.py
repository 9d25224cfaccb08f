"""Texts that the fake engine draws under a request's grammar, by llguidance's own matcher."""

from __future__ import annotations

import random

from llguidance import LLMatcher, LLTokenizer

from engine.config import GrammarLimits
from engine.messages.request import Request
from engine.messages.step_output import Finish
from engine.structured.limits import parser_limits
from engine.structured.matcher import ChoiceMatcher
from tests.fakes import EOS, Script, byte_backend

LIKED = frozenset(b'"{}[],:0123456789truefalsn')
"""Bytes that are drawn eight times as often as others, so that texts come to an end."""


def follows_grammar(seed: int = 0) -> Script:
    """A script that draws at random what grammar and budget allow, and ends where it must."""
    tokenizer = LLTokenizer(byte_backend().to_str(), 259, [EOS])
    choices: dict[tuple[int, int], tuple[ChoiceMatcher, random.Random]] = {}

    def draw(request: Request, choice: int, position: int) -> int | Finish:
        assert request.is_constrained
        assert request.params.constrained
        key = (request.handle, choice)
        if key not in choices:
            rng = random.Random(f"{seed} {choice} {request.params.seed}")
            choices[key] = (_choice_matcher(request, tokenizer), rng)
        state, rng = choices[key]
        allowed = _allowed(state)
        weights = [8 if i in LIKED else 40 if i == EOS else 1 for i in allowed]
        drawn: int = rng.choices(allowed, weights)[0]
        for token_id in state.enter([drawn]):
            assert state.matcher is not None
            assert state.matcher.consume_token(token_id), state.matcher.get_error()
        return drawn

    return draw


def _choice_matcher(request: Request, tokenizer: LLTokenizer) -> ChoiceMatcher:
    grammar, limits = request.grammar, parser_limits(GrammarLimits())
    made = None
    if grammar is not None:
        made = LLMatcher(tokenizer, grammar.source, log_level=0, limits=limits)
    return ChoiceMatcher(grammar, made, request.thinking_budget)


def _allowed(state: ChoiceMatcher) -> list[int]:
    """The ids that may come next."""
    wanted = state.masks_in([])
    allowed = [] if wanted.also else list(range(EOS))  # where nothing holds it, it goes on
    for run in wanted.runs:
        mask = run.matcher.compute_bitmask()
        assert not run.matcher.is_error(), run.matcher.get_error()
        allowed = [i for i in range(259) if mask[i >> 3] >> (i & 7) & 1]
    allowed += [i for i in wanted.also.values() if i not in allowed]
    return [i for i in wanted.forced.values() if i in allowed] or allowed
