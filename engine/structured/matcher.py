"""How far one choice is in its grammar and its thoughts, and which masks its next tokens need."""

from __future__ import annotations

from dataclasses import dataclass, field

from llguidance import LLMatcher

from engine.messages.request import Grammar, ThinkingBudget
from engine.messages.step_output import Finish
from engine.structured.beginning import Beginning, Phase
from engine.structured.budget import BudgetCount
from engine.structured.limits import allows_no_text, is_over_limit


@dataclass(frozen=True)
class MaskRun:
    """Neighbouring positions that draw under the grammar.

    Attributes:
        first: the index of the first among the choice's next positions.
        matcher: is before that position.
        drafts: of the positions but the last.
    """

    first: int
    matcher: LLMatcher
    drafts: list[int]


@dataclass(frozen=True)
class WantedMasks:
    """The masks of a choice's next positions, by their index.

    Attributes:
        runs: positions under the grammar, in order.
        also: ids that are allowed beside what the grammar allows there.
        forced: ids that alone are allowed there, unless the grammar refuses them.
        unended: positions where the text may not end, since its grammar has not begun.
    """

    runs: list[MaskRun] = field(default_factory=list)
    also: dict[int, int] = field(default_factory=dict)
    forced: dict[int, int] = field(default_factory=dict)
    unended: list[int] = field(default_factory=list)


class ChoiceMatcher:
    """A choice's place in its grammar and in its thoughts.

    Args:
        grammar: None for a choice that only has a budget, or the other way round.
        compiled: a matcher at the beginning of the grammar, which is copied.
        lock: the number of that compile; -1 for none.

    Attributes:
        lock: matchers of one number share a lock.
        matcher: has consumed the choice's tokens that were read back, as far as they belong to the
            grammar, and no others.
        is_plain: whether its grammar has begun, and is all that restricts it.
    """

    def __init__(
        self,
        grammar: Grammar | None,
        compiled: LLMatcher | None,
        budget: ThinkingBudget | None = None,
        lock: int = -1,
    ) -> None:
        self.lock = lock
        self.matcher = compiled.deep_copy() if compiled is not None else None
        self._beginning = None if grammar is None else Beginning(grammar)
        self._budget = None if budget is None else BudgetCount(budget)
        self._may_be_empty = self.matcher is not None and self.matcher.is_accepting()
        if self._beginning is not None:
            self._place = self._beginning.first
        if self._budget is not None:
            self._thinking = self._budget.first
        self.is_plain = self._is_plain()

    def _is_plain(self) -> bool:
        if self._beginning is None or self._budget is not None:
            return False
        return self._place.phase is Phase.GRAMMAR

    def masks_in(self, drafts: list[int]) -> WantedMasks:
        """The masks of the position before each of the choice's next tokens and of the last."""
        wanted = WantedMasks()
        if self._beginning is not None:
            self._add_runs(self._beginning, drafts, wanted)
        if self._budget is not None:
            place = self._thinking
            for i, token_id in enumerate((*drafts, -1)):
                if (forced := self._budget.forced(place)) is not None:
                    wanted.forced[i] = forced
                place = self._budget.advance(place, token_id)
        return wanted

    def _add_runs(self, beginning: Beginning, drafts: list[int], wanted: WantedMasks) -> None:
        assert self.matcher is not None
        place, run = self._place, None
        if place.phase is Phase.GRAMMAR:
            wanted.runs.append(MaskRun(0, self.matcher, drafts))
            return
        if place.phase is Phase.OPENING:
            wanted.also[0] = beginning.opening[place.matched]
            run = self._opening_run(beginning.opening[: place.matched], wanted)
        elif not self._may_be_empty:
            wanted.unended.append(0)
        for i, token_id in enumerate(drafts, 1):
            before, place = place.phase, beginning.advance(place, token_id)
            if place.phase is Phase.OPENING:
                wanted.also[i] = beginning.opening[place.matched]
            if place.phase is Phase.BEFORE:
                run = None
                if not self._may_be_empty:
                    wanted.unended.append(i)
            elif before is Phase.BEFORE:
                # The other run may be asked at the same time.
                matcher = self.matcher.deep_copy() if wanted.runs else self.matcher
                run = MaskRun(i, matcher, [])
                wanted.runs.append(run)
            elif run is not None:
                run.drafts.append(token_id)

    def _opening_run(self, opened: tuple[int, ...], wanted: WantedMasks) -> MaskRun | None:
        """The run after ids that open the choice; None where the grammar does not allow these."""
        assert self.matcher is not None
        matcher = self.matcher
        if opened:
            matcher = matcher.deep_copy()
            if matcher.try_consume_tokens(list(opened)) < len(opened):
                return None
        wanted.runs.append(run := MaskRun(0, matcher, []))
        return run

    def enter(self, token_ids: list[int]) -> list[int]:
        """Note the choice's next tokens; returns those that the matcher is to consume."""
        if self.is_plain:
            return token_ids
        consumed = self._advance(token_ids)
        self.is_plain = self._is_plain()
        return consumed

    def _advance(self, token_ids: list[int]) -> list[int]:
        if self._budget is not None:
            for token_id in token_ids:
                self._thinking = self._budget.advance(self._thinking, token_id)
        beginning = self._beginning
        if beginning is None:
            return []
        for i, token_id in enumerate(token_ids):
            before = self._place
            if before.phase is Phase.GRAMMAR:
                return token_ids[i:]
            self._place = beginning.advance(before, token_id)
            if before.phase is Phase.OPENING and self._place.phase is Phase.GRAMMAR:
                return [*beginning.opening[: before.matched], *token_ids[i:]]
        return []


def error_of(matcher: LLMatcher) -> str:
    """The first line of a matcher's error, which names what it could not do."""
    lines = matcher.get_error().strip().splitlines()
    return lines[0] if lines else "llguidance does not say why"


def finish_of(words: str) -> Finish:
    """How a choice ends whose matcher says so of its error."""
    if is_over_limit(words):
        return Finish.TOO_COMPLEX
    return Finish.EMPTY if allows_no_text(words) else Finish.GRAMMAR
