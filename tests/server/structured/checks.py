"""The fake's bytes as a vocabulary, grammars checked against it, and texts tried on them."""

from __future__ import annotations

from typing import Any

from llguidance import LLMatcher, LLTokenizer

from server.structured.llguidance_check import GrammarCheck
from server.structured.spec import CheckedGrammar, GrammarKind, GrammarSpec, TokenTable
from tests.fakes import BOS, EOS, SPECIAL, byte_backend, byte_tokenizer

TOKENS = TokenTable(tokens=byte_tokenizer().raw, special_ids=[EOS, BOS, SPECIAL], eos_ids=[EOS])
CHECK = GrammarCheck(TOKENS)
TOKENIZER = LLTokenizer(byte_backend().to_str(), 259, [EOS])


def checked(kind: GrammarKind, value: Any, **options: Any) -> CheckedGrammar:
    """A grammar that must be taken."""
    return CHECK.check(GrammarSpec(kind, value, "here", **options))


def matches(grammar: CheckedGrammar, text: str | list[int]) -> bool:
    """Whether a grammar takes a text, or ids, as a whole."""
    matcher = LLMatcher(TOKENIZER, grammar.source, log_level=0)
    token_ids = list(text.encode()) if isinstance(text, str) else text
    taken = matcher.validate_tokens(token_ids)
    matcher.consume_tokens(token_ids[:taken])
    assert not matcher.is_error(), matcher.get_error()
    return taken == len(token_ids) and matcher.is_accepting()
