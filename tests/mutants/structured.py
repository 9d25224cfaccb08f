"""Mutants of grammars in the engine."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STRUCTURED = "tests/engine/structured"
_DRAW = "        self._pipeline.draw(masks)\n"
_LAUNCH_SCORING = "        self._scoring.launch(held=self.held.is_held)\n"

STRUCTURED = (
    Mutant(
        "choices-that-ended-count-for-their-compile",
        "engine/structured/awaited.py",
        "            compiled.num_choices -= 1\n",
        "            pass\n",
        (f"{_STRUCTURED}/test_grammars.py::test_choices_that_ended_leave_their_compile_to_others",),
    ),
    Mutant(
        "who-went-away-during-a-compile-is-waited-for",
        "engine/structured/awaited.py",
        "        self._waiting.discard(choice)\n",
        "",
        (
            f"{_STRUCTURED}/test_grammars.py"
            "::test_choices_are_aborted_while_their_grammar_is_compiled",
        ),
    ),
    Mutant(
        "a-mask-is-one-position-late",
        "engine/structured/step_masks.py",
        "self._slots[row : row + count] = np.arange(first, first + count)",
        "self._slots[row + 1 : row + count] = np.arange(first, first + count - 1)",
        (f"{_STRUCTURED}/test_constrained.py::test_coupled_drafts_keep_to_the_grammar",),
    ),
    Mutant(
        "masks-after-a-refused-draft-are-what-was-left-there",
        "engine/structured/masks.py",
        "counts[place] = 1 + self._num_allowed(slot, drafts)",
        "counts[place] = 1 + len(drafts)",
        (
            f"{_STRUCTURED}/test_masks.py"
            "::test_masks_behind_drafts_equal_a_plain_loop_and_nothing_is_left_in_the_matchers",
        ),
    ),
    Mutant(
        "a-matcher-keeps-what-was-refused",
        "engine/structured/grammars.py",
        "entered = [ids[:num] for",
        "entered = [ids for",
        (f"{_STRUCTURED}/test_constrained.py::test_coupled_drafts_keep_to_the_grammar",),
    ),
    Mutant(
        "masks-follow-the-drafts-of-the-step-before",
        "engine/structured/grammars.py",
        "            self._drafts[rows[live]] = result.drafts[live]\n",
        "            self._drafts[rows[live], :0] = result.drafts[live, :0]\n",
        (f"{_STRUCTURED}/test_constrained.py::test_coupled_drafts_keep_to_the_grammar",),
    ),
    Mutant(
        "a-marker-over-two-steps-is-not-seen",
        "engine/structured/matcher.py",
        "            before = self._place\n            if before",
        "            before = self._place if i else beginning.first\n            if before",
        (
            f"{_STRUCTURED}/test_matcher.py"
            "::test_a_grammar_begins_behind_the_first_occurrence_of_its_marker",
        ),
    ),
    Mutant(
        "scoring-overwrites-a-forward-that-awaits-masks",
        "engine/engine.py",
        f"{_DRAW}{_LAUNCH_SCORING}",
        f"{_LAUNCH_SCORING}{_DRAW}",
        (
            f"{_STRUCTURED}/test_grammars.py"
            "::test_a_step_with_one_is_drawn_behind_the_last_result_and_the_next_launched",
        ),
    ),
    Mutant(
        "a-choice-that-ended-is-asked-for-a-mask",
        "engine/structured/grammars.py",
        "[~goes_on]]):\n            self._strike(choice)\n",
        "[~goes_on]]):\n            pass\n",
        (f"{_STRUCTURED}/test_grammars.py::test_a_choice_that_ended_after_its_launch_has_no_mask",),
    ),
    Mutant(
        "a-compile-keeps-the-loop-busy",
        "engine/structured/prerequisites.py",
        "            count += self._grammars.num_waiting\n",
        "            pass\n",
        (
            f"{_STRUCTURED}/test_grammars.py"
            "::test_a_choice_that_waits_for_its_grammar_holds_up_nobody",
        ),
    ),
    Mutant(
        "ids-of-a-marker-count-as-thoughts",
        "engine/structured/budget.py",
        "return Thinking(False, 0, num_thoughts + 1 - matched)",
        "return Thinking(False, 0, num_thoughts)",
        (
            f"{_STRUCTURED}/test_matcher.py::test_masks_are_those_of_the_definition_however_tokens_come",
        ),
    ),
    Mutant(
        "ids-that-began-a-marker-are-lost-to-the-grammar",
        "engine/structured/matcher.py",
        "return [*beginning.opening[: before.matched], *token_ids[i:]]",
        "return token_ids[i:]",
        (f"{_STRUCTURED}/test_matcher.py::TestOpening::test_a_marker_that_the_grammar_allows_too",),
    ),
)
