"""A grammar's bounds and dead ends in llguidance's words; frontends that check one use them too."""

from __future__ import annotations

import re

from llguidance import LLParserLimits

from engine.config import GrammarLimits

_OVER = re.compile(
    r"Current row has \d+ items; max|Too many items \(limit"
    r"|lexer error: too many (expressions|states)"
)
"""What llguidance says of a limit that was met while tokens were drawn."""
_NO_TEXT = "NoExtension"
"""How it calls a grammar that nothing can be added to, and that may not end either."""


def parser_limits(limits: GrammarLimits) -> LLParserLimits:
    """The limits that llguidance keeps by itself: all but the size of the source.

    Errors do not show the parser's state, which may hold the grammar's content.
    """
    return LLParserLimits(
        max_items_in_row=limits.max_items_in_row,
        initial_lexer_fuel=limits.initial_lexer_fuel,
        step_lexer_fuel=limits.step_lexer_fuel,
        step_max_items=limits.step_max_items,
        max_lexer_states=limits.max_lexer_states,
        max_grammar_size=limits.max_grammar_size,
        verbose_errors=False,
    )


def is_over_limit(words: str) -> bool:
    """Whether a matcher's error is that its grammar went over a limit, which its author can mend.

    `LLMatcher.stop_reason` is the same for all errors.
    """
    return _OVER.search(words) is not None


def allows_no_text(words: str) -> bool:
    """Whether a matcher's error is that no text goes on: its grammar has a dead end."""
    return words.startswith(_NO_TEXT)
