"""The limits that llguidance is given are the configuration's."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher

from engine.config import GrammarLimits
from engine.messages.step_output import Finish
from engine.structured.limits import parser_limits
from engine.structured.matcher import error_of, finish_of
from tests.engine.structured.constrained import TOKENIZER, ll_tokenizer, of_regex

DEAD_END = 'start: "a" /[^\\s\\S]/'
MANY_STATES = of_regex("(a|b)*a(a|b){18}")
OPTIONAL = {"type": "object", "properties": {f"p{i}": {} for i in range(60)}}
MANY_ITEMS = LLMatcher.grammar_from_json_schema(json.dumps(OPTIONAL))


def test_every_limit_is_passed_on() -> None:
    limits = GrammarLimits(
        max_grammar_size=11,
        initial_lexer_fuel=12,
        max_lexer_states=13,
        max_items_in_row=14,
        step_lexer_fuel=15,
        step_max_items=16,
    )
    passed = parser_limits(limits)
    for name in GrammarLimits.__struct_fields__:
        if name != "max_source_bytes":
            assert getattr(passed, name) == getattr(limits, name)
    assert not passed.verbose_errors


@pytest.mark.parametrize(
    ("source", "text", "limits", "finish"),
    [
        (MANY_ITEMS, '{"', GrammarLimits(max_items_in_row=50), Finish.TOO_COMPLEX),
        (MANY_ITEMS, '{"p', GrammarLimits(step_max_items=20), Finish.TOO_COMPLEX),
        (MANY_STATES, "abaabbab" * 8, GrammarLimits(max_lexer_states=20), Finish.TOO_COMPLEX),
        (MANY_STATES, "abaabbab" * 8, GrammarLimits(step_lexer_fuel=20), Finish.TOO_COMPLEX),
        (DEAD_END, "a", GrammarLimits(), Finish.EMPTY),
        (MANY_STATES, "c", GrammarLimits(), Finish.GRAMMAR),
    ],
)
def test_errors_met_while_tokens_are_drawn_are_told_from_one_another(
    source: str, text: str, limits: GrammarLimits, finish: Finish
) -> None:
    matcher = LLMatcher(ll_tokenizer(), source, log_level=0, limits=parser_limits(limits))
    assert not matcher.is_error()
    for token_id in TOKENIZER.encode(text):
        matcher.compute_bitmask()
        matcher.consume_token(token_id)
    matcher.compute_bitmask()
    assert matcher.is_error()
    assert finish_of(error_of(matcher)) == finish
