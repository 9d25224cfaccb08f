"""Grammars are compiled once, on threads, within their limits."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from llguidance import LLMatcher

from engine.config import GrammarLimits, StructuredConfig
from engine.structured import compiler as compiler_module
from engine.structured.awaited import AwaitedGrammars
from engine.structured.compiler import SHARED, GrammarCompiler, GrammarError
from tests.engine.structured.constrained import ll_tokenizer, of_json, of_regex, of_schema


def make(
    cache_size: int = 128, max_shares: int = 1, **fields: Any
) -> tuple[GrammarCompiler, threading.Semaphore]:
    """A compiler, and a semaphore that each compile's end releases."""
    ended = threading.Semaphore(0)
    config = StructuredConfig(tokenizer="none", **fields)
    return GrammarCompiler(config, ll_tokenizer(), ended.release, cache_size, max_shares), ended


def test_equal_sources_are_compiled_once() -> None:
    compiler, ended = make()
    first = compiler.compile(of_schema("flat"))
    assert compiler.compile(of_schema("flat")) is first, "also while it is compiled"
    assert ended.acquire(timeout=30)
    assert not first.matcher.result().is_error()
    assert compiler.compile(of_schema("flat")) is first
    assert not ended.acquire(timeout=0.05)
    compiler.compile(of_schema("list")).matcher.result()
    assert (compiler.num_compiles, compiler.num_cache_hits) == (2, 2)
    assert compiler.seconds > 0


def test_the_grammar_asked_for_longest_ago_is_dropped() -> None:
    compiler, _ = make(cache_size=2)
    sources = [of_regex(text) for text in ("a", "b", "c")]
    for source in (sources[0], sources[1], sources[0], sources[2]):
        compiler.compile(source).matcher.result()
    assert compiler.num_compiles == 3
    compiler.compile(sources[0]).matcher.result()
    assert compiler.num_compiles == 3
    compiler.compile(sources[1]).matcher.result()
    assert compiler.num_compiles == 4


def test_a_grammar_of_many_choices_is_compiled_for_some_of_them_each() -> None:
    compiler, _ = make(max_shares=3)
    source = of_schema("flat")
    shares = [compiler.compile(source) for _ in range(3 * SHARED + 3)]
    assert compiler.num_compiles == 3
    assert len({id(share.matcher.result()) for share in shares}) == 3
    assert sorted(share.num_choices for share in set(shares)) == [SHARED + 1] * 3
    shares[0].num_choices -= 2
    assert compiler.compile(source) is shares[0], "the one with the fewest choices"


@pytest.mark.parametrize(
    ("source", "limits", "words"),
    [
        ("nonsense", {}, "Expected token"),
        (of_json({"not": {"type": "string"}}), {}, "not"),
        (of_regex("a" * 2000), {"max_source_bytes": 1000}, "its source is over 1000 bytes"),
        (of_schema("flat"), {"initial_lexer_fuel": 10}, "too big"),
        (of_schema("flat"), {"max_grammar_size": 10}, "size"),
        (of_regex("(a|b)*c{900}"), {"max_lexer_states": 10}, "states"),
    ],
)
def test_what_cannot_be_compiled_says_why_in_a_line(
    source: str, limits: dict[str, int], words: str
) -> None:
    compiler, ended = make(limits=GrammarLimits(**limits))
    error = compiler.compile(source).matcher.exception(timeout=30)
    assert isinstance(error, GrammarError)
    assert words in str(error)
    assert "\n" not in str(error)
    assert ended.acquire(timeout=30)


def test_a_compile_that_raises_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*args: Any, **fields: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(compiler_module, "LLMatcher", explode)
    compiler, ended = make()
    assert isinstance(compiler.compile("x").matcher.exception(timeout=30), RuntimeError)
    assert ended.acquire(timeout=30)


class EndsWhenAsked(Future[LLMatcher]):
    """Ends right after it has said that it has not."""

    def done(self) -> bool:
        has_ended = super().done()
        if not has_ended:
            self.set_result(LLMatcher(ll_tokenizer(), of_regex("a")))
        return has_ended


def test_a_compile_that_ends_while_its_choices_are_held_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, matcher = StructuredConfig(tokenizer="none"), EndsWhenAsked()
    awaited = AwaitedGrammars(config, ll_tokenizer(), max_rows=1, max_shares=1)
    monkeypatch.setattr(awaited.compiler._threads, "submit", lambda *_: matcher)
    awaited.hold([], of_regex("a"))
    assert awaited.has_compiled, "the loop would sleep for ever"
    assert [held.compiled.matcher for held in awaited.take()] == [matcher]
