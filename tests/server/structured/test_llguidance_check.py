"""Grammars of every kind as llguidance takes them: which texts match, which tokens come first."""

from __future__ import annotations

import numpy as np
import pytest

from server.errors import ApiError
from server.structured.llguidance_check import GrammarCheck
from server.structured.spec import COMPACT, CheckedGrammar, GrammarKind, GrammarSpec, TokenTable
from tests.fakes import EOS, SPECIAL
from tests.server.structured.checks import TOKENS, checked, matches

PAIR = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
    "additionalProperties": False,
}
GBNF = 'root ::= item ("," item)*\nitem ::= [0-9]+'


def first_ids(grammar: CheckedGrammar) -> list[int]:
    bits = np.unpackbits(np.frombuffer(grammar.first, dtype=np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


class TestJson:
    def test_the_schema_is_kept_to(self) -> None:
        grammar = checked("json", PAIR)
        assert matches(grammar, '{"a":[1,2]}')
        assert not matches(grammar, '{"a":["x"]}')
        assert not matches(grammar, '{"b":1}')

    @pytest.mark.parametrize("gap", ["", " ", "  ", "\n", "\r\n", "\n" + " " * 32, "\t"])
    def test_white_space_of_pretty_printing(self, gap: str) -> None:
        assert matches(checked("json", PAIR), f'{{{gap}"a"{gap}:{gap}[{gap}1{gap},{gap}2{gap}]}}')

    @pytest.mark.parametrize("gap", ["   ", "\n\n", "\n" + " " * 33, "\n" * 200, "\v", " \n"])
    def test_white_space_is_bounded(self, gap: str) -> None:
        assert not matches(checked("json", PAIR), f'{{"a":[1,{gap}2]}}')

    @pytest.mark.parametrize("text", [' {"a":[]}', '{"a":[]} '])
    def test_none_stands_around_it(self, text: str) -> None:
        assert not matches(checked("json", PAIR), text)

    def test_it_may_be_chosen(self) -> None:
        compact, own = (
            checked("json", PAIR, whitespace=COMPACT),
            checked("json", PAIR, whitespace="\n{0,3}"),
        )
        assert matches(compact, '{"a":[1,2]}')
        assert not matches(compact, '{"a": [1]}')
        assert matches(own, '{"a":[1,\n\n\n2]}')
        assert not matches(own, '{"a": [1]}')

    def test_a_pattern_that_is_none_is_named(self) -> None:
        with pytest.raises(ApiError, match=r"is refused: .*unclosed group") as caught:
            checked("json", PAIR, whitespace="( ")
        assert caught.value.param == "structured_outputs.whitespace_pattern"

    def test_options_within_a_schema_have_no_effect(self) -> None:
        sneaky = {**PAIR, "x-guidance": {"lenient": True, "item_separator": ";", "not": 1}}
        grammar = checked("json", sneaky)
        assert matches(grammar, '{"a":[1,2]}')
        assert not matches(grammar, '{"a":[1;2]}')

    def test_true_is_any_json(self) -> None:
        for text in ("null", "[1]", '"a"', "{}"):
            assert matches(checked("json", True), text)


class TestOtherKinds:
    def test_regex(self) -> None:
        grammar = checked("regex", 'a/b"\\d+\n')
        assert matches(grammar, 'a/b"12\n')
        assert not matches(grammar, 'a/b"x\n')

    def test_choices_are_what_they_are(self) -> None:
        texts = ["yes", "yes!", 'a "quoted" /path/\\', "grüße 🙂", "\x00\x1f\x7f\u2028"]
        grammar = checked("choice", texts)
        assert all(matches(grammar, text) for text in texts)
        assert not matches(grammar, "no")
        assert not matches(grammar, "ye")

    def test_an_empty_choice(self) -> None:
        grammar = checked("choice", ["", "a"])
        assert matches(grammar, "")
        assert first_ids(grammar) == [ord("a"), EOS]

    @pytest.mark.parametrize("text", [GBNF, 'start: ITEM ("," ITEM)*\nITEM: /[0-9]+/'])
    def test_grammars(self, text: str) -> None:
        grammar = checked("grammar", text)
        assert matches(grammar, "1,23")
        assert not matches(grammar, "1,")

    def test_escapes_of_gbnf_are_what_they_are_for_llama_cpp(self) -> None:
        text = r'root ::= "\u0042\u00e9" "\U0001F600" "\[\x41\]" [\u4e00-\u9fff\u005d] "\\u0041"'
        grammar = checked("grammar", text)
        assert matches(grammar, "Bé😀[A]一\\u0041")
        assert matches(grammar, "Bé😀[A]]\\u0041")
        assert not matches(grammar, "Bé😀[A]^\\u0041")

    def test_special_tokens_are_named_in_brackets(self) -> None:
        grammar = checked("grammar", 'start: <special> "a"')
        assert first_ids(grammar) == [SPECIAL]
        assert matches(grammar, [SPECIAL, ord("a")])
        assert not matches(grammar, "<special>a")

    def test_all_tokens_may_come_that_a_text_begins_with(self) -> None:
        """Also where the whole text is known: which of its tokens comes, the model says."""
        from llguidance import LLMatcher, LLTokenizer

        from server.structured.llguidance_check import _Tokens
        from server.structured.spec import TokenTable

        words = [b"ab", b"abc", b'"a', b'{"']
        tokens = [bytes([i]) for i in range(256)] + [b"<eos>", *words]
        tokenizer = LLTokenizer(_Tokens(TokenTable(tokens, [256], [256])), len(tokens), [256])  # type: ignore[arg-type]
        for kind, value, expected in (
            ("choice", ["abcd"], {97, 257, 258}),
            ("json", {"const": "abcd"}, {34, 259}),
            ("regex", "abcd", {97, 257, 258}),
        ):
            kinds: dict[str, GrammarKind] = {"choice": "choice", "json": "json", "regex": "regex"}
            source = checked(kinds[kind], value).source
            mask = LLMatcher(tokenizer, source, log_level=0).compute_bitmask()
            assert {i for i in range(len(tokens)) if mask[i >> 3] >> (i & 7) & 1} == expected


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("regex", "(?=a)b", "look-around"),
        ("regex", "[", "unclosed"),
        ("regex", "a\\", "a backslash at the end escapes nothing"),
        ("regex", "(" * 3000 + ")" * 3000, "nested"),
        ("regex", r"(a)\1", "backreferences"),
        ("grammar", "start: start", "matches no text"),
        ("grammar", 'start: a\na: a "x"', "matches no text"),
        ("grammar", "start: A\nA: /a/ & /b/", "matches no text"),
        ("grammar", "start: foo", "unknown name"),
        ("grammar", "start: <nothing>", "nothing"),
        ("grammar", 'start: "', "1(9)"),
        ("grammar", "root ::= (", "no GBNF"),
        ("grammar", r'root ::= "\ud83d"', "hex escape"),
        ("grammar", r'root ::= "\U00110000"', "no GBNF"),
        ("grammar", "", "no GBNF"),
        ("grammar", "start: a\na[temperature=0.5]: /x/", "temperature"),
        ("grammar", '{"grammars": []}', "no GBNF"),
    ],
)
def test_refusals_name_the_field_and_stay_short(kind: GrammarKind, value: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked(kind, value)
    assert (caught.value.status, caught.value.param) == (400, "here")
    assert words in caught.value.message
    assert len(caught.value.message) < 500


def test_a_format_that_nobody_knows_is_a_remark() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "format": "cuid"}, "n": {"type": "integer"}},
        "required": ["id"],
        "additionalProperties": False,
    }
    found = checked("json", schema)
    assert found.ignored == ["here.properties.id.format"]
    assert matches(found, '{"id": "x"}')
    assert not matches(found, '{"n": 1}')


def test_a_format_does_not_hide_what_else_is_wrong() -> None:
    schema = {"type": "string", "format": "cuid", "not": {"pattern": "x"}}
    with pytest.raises(ApiError) as raised:
        checked("json", schema)
    assert raised.value.param == "here.not"
    assert "--lenient-schemas" in raised.value.message
    assert set(checked("json", schema, lenient=True).ignored) == {"here.format", "here.not"}


def test_an_expression_over_a_limit_is_not_said_to_match_nothing() -> None:
    """Tokens of many characters meet the limit with the first mask; others meet it later."""
    tokens = [*TOKENS.tokens, *(b"a" * n for n in range(2, 40))]
    table = TokenTable(tokens=tokens, special_ids=TOKENS.special_ids, eos_ids=TOKENS.eos_ids)
    spec = GrammarSpec("regex", "((((a{1,9}){1,9}){1,9}){1,9}){1,99}", "here")
    with pytest.raises(
        ApiError, match=r"here is too large to follow .lexer error: too many"
    ) as raised:
        GrammarCheck(table).check(spec)
    assert raised.value.code == "grammar_too_large"
    with pytest.raises(ApiError, match="matches no text"):
        GrammarCheck(table).check(GrammarSpec("regex", r"[^\s\S]", "here"))
