"""Whether llguidance takes a grammar, and which tokens may come first."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from engine.config import GrammarLimits
from engine.structured.limits import allows_no_text, is_over_limit, parser_limits
from server.errors import ApiError, bad_request
from server.structured.endless import endless_reference
from server.structured.grammar_source import checked_schema, schema_source, source_of
from server.structured.refusals import (
    refusal,
    shortened,
    without_refused,
)
from server.structured.spec import COMPACT, WHITESPACE, CheckedGrammar, GrammarSpec, TokenTable
from server.structured.subschemas import Node, path_in


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: TokenTable) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_ids[0]

    def __call__(self, text: str | bytes) -> Sequence[int]:
        return []  # never asked: sources leave the choice of tokens to the model


class GrammarCheck:
    """Checks grammars against one vocabulary, within the limits that the engine keeps to."""

    def __init__(self, vocabulary: TokenTable) -> None:
        self._limits = parser_limits(GrammarLimits())
        self._tokenizer = LLTokenizer(
            _Tokens(vocabulary),  # type: ignore[arg-type]
            len(vocabulary.tokens),
            vocabulary.eos_ids,
            slices=[],  # these make many masks faster, and each is asked for one here
        )
        self._special_ids = {
            vocabulary.tokens[i].decode(errors="replace"): i
            for i in vocabulary.special_ids
            if vocabulary.tokens[i]
        }

    def check(self, spec: GrammarSpec) -> CheckedGrammar:
        """The grammar's source; raises `ApiError` naming what is wrong with it."""
        ignored: list[str] = []
        schema: Node | bool | None = None
        self._check_whitespace(spec.whitespace)
        if spec.kind == "json":
            schema, ignored = self._check_schema(spec)
            _check_ends(schema, spec.param)
            source = schema_source(schema, spec)
        else:
            source = source_of(spec, self._special_ids)
            if (message := self._message(source)) is not None:
                raise refusal(spec.param, message, None)
        first = self._first_mask(source, spec.param)
        return CheckedGrammar(source, ignored, first, schema if ignored else None)

    def _check_whitespace(self, pattern: str) -> None:
        """Refuse a pattern by itself: the words against a schema with it would not name it."""
        if pattern not in (WHITESPACE, COMPACT):
            param = "structured_outputs.whitespace_pattern"
            source = source_of(GrammarSpec("regex", pattern, param), self._special_ids)
            if (message := self._message(source)) is not None:
                raise refusal(param, message, None)

    def _check_schema(self, spec: GrammarSpec) -> tuple[Node | bool, list[str]]:
        """The schema that is kept to, and what of the request's was dropped."""

        def refused(schema: Node | bool) -> str | None:
            return self._message(checked_schema(schema, spec))

        message = refused(spec.value)
        if message is None:
            return spec.value, []
        assert isinstance(spec.value, dict)
        return without_refused(spec.value, spec.param, refused, lenient=spec.lenient)

    def _message(self, source: str) -> str | None:
        """What llguidance says against a source; None where it has nothing to say."""
        is_error, words = LLMatcher.validate_grammar_with_warnings(
            source, self._tokenizer, limits=self._limits
        )
        return words[0] if is_error else None

    def _first_mask(self, source: str, param: str) -> bytes:
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        message = matcher.get_error()
        if message and not allows_no_text(message):  # over a limit, which says nothing of texts
            raise _stopped(param, message)
        if message or (matcher.is_stopped() and not matcher.is_accepting()):
            raise bad_request(param, f"{param} matches no text", "grammar_refused")
        return mask


def _stopped(param: str, message: str) -> ApiError:
    """The error for a grammar that is well formed, and whose first token cannot be found."""
    words = shortened(message.removesuffix("<non-verbose/>"))
    if is_over_limit(message):
        words = f"{param} is too large to follow ({words}): let it repeat less, or nest less"
        return bad_request(param, words, "grammar_too_large")
    return bad_request(param, f"{param} is refused: {words}", "grammar_refused")


def _check_ends(schema: Node | bool, param: str) -> None:
    """Raise a 400 for a schema of which no value is finite."""
    if isinstance(schema, bool) or (path := endless_reference(schema)) is None:
        return
    field = path_in(param, path)
    raise bad_request(
        field,
        f"{field} recurs without end, so that no text is finite: let one of the values on the way "
        "be left out, or be null",
        "grammar_refused",
    )
