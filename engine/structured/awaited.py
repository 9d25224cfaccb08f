"""Choices that wait until their grammars are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llguidance import LLTokenizer

from engine.config import StructuredConfig
from engine.rows import Choice
from engine.structured.compiler import CompiledGrammar, GrammarCompiler

GRAMMARS_A_ROW, LEAST_GRAMMARS = 2, 128
"""Grammars that are kept where no number is configured."""


class AwaitedGrammar(NamedTuple):
    """The choices of a request whose grammar is being compiled."""

    choices: list[Choice]
    compiled: CompiledGrammar


class AwaitedGrammars:
    """Holds choices until their grammars are compiled, and knows each compile's choices after that.

    One loop calls all methods; only compiles end on other threads.

    Args:
        max_rows: rows of a step. max_shares: see `GrammarCompiler`.

    Attributes:
        compiler: compiles them.
        has_compiled: whether `take` may have something to give.
    """

    def __init__(
        self, config: StructuredConfig, tokenizer: LLTokenizer, max_rows: int, max_shares: int
    ) -> None:
        cache_size = config.cache_size or max(GRAMMARS_A_ROW * max_rows, LEAST_GRAMMARS)
        self.compiler = GrammarCompiler(
            config, tokenizer, self._note_compiled, cache_size, max_shares
        )
        self.has_compiled = False
        self._held: list[AwaitedGrammar] = []
        self._waiting: set[Choice] = set()
        self._compiled: dict[Choice, CompiledGrammar] = {}
        self._wake: Callable[[], None] = lambda: None

    @property
    def num_waiting(self) -> int:
        """The number of choices that wait."""
        return len(self._waiting)

    def on_compiled(self, wake: Callable[[], None]) -> None:
        """Let `wake` be called, on another thread, whenever a compile ends."""
        self._wake = wake

    def hold(self, choices: list[Choice], source: str) -> None:
        """Let choices wait for the compile of their grammar."""
        compiled = self.compiler.compile(source, len(choices))
        self._held.append(AwaitedGrammar(choices, compiled))
        self._compiled.update((choice, compiled) for choice in choices)
        self._waiting.update(choices)
        if compiled.matcher.done():  # it is set only: the compile may end meanwhile, and set it too
            self.has_compiled = True

    def _note_compiled(self) -> None:
        self.has_compiled = True
        self._wake()

    def take(self) -> list[AwaitedGrammar]:
        """Requests whose compile has ended, with those of their choices that have not."""
        if not self.has_compiled:
            return []
        self.has_compiled = False
        done = [held for held in self._held if held.compiled.matcher.done()]
        self._held = [held for held in self._held if held not in done]
        taken = []
        for held in done:
            choices = [choice for choice in held.choices if not choice.ended]
            self._waiting.difference_update(choices)
            taken.append(AwaitedGrammar(choices, held.compiled))
        return taken

    def forget(self, choice: Choice) -> None:
        """Drop a choice that ended, waiting or not."""
        self._waiting.discard(choice)
        if (compiled := self._compiled.pop(choice, None)) is not None:
            compiled.num_choices -= 1
