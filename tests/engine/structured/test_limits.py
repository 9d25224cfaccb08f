"""The limits that llguidance is given are the configuration's."""

from __future__ import annotations

from engine.config import GrammarLimits
from engine.structured.limits import parser_limits


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
