"""Mutants of the planning of choices' steps."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "tests/engine/planning/test_scheduler.py"
BLOCKS = "tests/engine/planning/test_scheduler_blocks.py"
REPEATED = "tests/engine/planning/test_repeats.py::test_plans_are_those_made_anew"
PASSED_ON = (
    "tests/engine/planning/test_outputs.py"
    "::test_a_step_passed_on_says_what_it_would_through_the_ring"
)
ENDS = (
    "tests/engine/planning/test_settle.py"
    "::test_rows_end_where_their_first_token_does_that_ends_them"
)
_STOPS = "    finish[ends & stopped[np.arange(len(rows)), first]] = Finish.STOP\n"
COMMANDS = "tests/engine/control/test_command_queue.py"
PLANNING = (
    Mutant(
        "a-pause-waits-for-requests-that-cannot-end",
        "engine/control/command_queue.py",
        'command.mode == "wait" and not self.state.is_held',
        'command.mode == "wait"',
        (f"{COMMANDS}::test_a_pause_of_an_engine_that_is_held_waits_for_nothing",),
    ),
    Mutant(
        "prefixes-of-other-weights-are-found",
        "engine/control/held_engine.py",
        "        parts.prefixes.num_updates = num_updates\n",
        "",
        (
            f"{COMMANDS}::test_no_prefix_of_other_weights_is_found",
            f"{COMMANDS}::test_a_drafter_s_update_leaves_the_version_alone",
        ),
    ),
    Mutant(
        "parts-of-a-prompt-are-of-two-weights",
        "engine/control/held_engine.py",
        "choice.hashes, choice.num_prompt_reported = None, 0\n",
        "choice.hashes = None\n",
        (f"{COMMANDS}::test_parts_of_a_prompt_s_report_begin_again_with_other_weights",),
    ),
    Mutant(
        "seeded-rows-draft-with-the-drafter-off",
        "engine/planning/drafting.py",
        "        if not self.num_tokens or self.switch.is_off:\n",
        "        if not self.num_tokens:\n",
        (f"{COMMANDS}::test_a_drafter_is_off_until_its_weights_are_updated",),
    ),
    Mutant(
        "routes-from-the-start-of-the-row-s-first-block",
        "engine/planning/routes.py",
        "        return blocks[places // size] * size + places % size\n",
        "        return blocks[0] * size + places\n",
        ("tests/engine/planning/test_routes.py::test_a_shared_prefix_is_read_where_it_lies",),
    ),
    Mutant(
        "rows-without-logprobs-take-no-places-in-a-joined-output",
        "engine/planning/outputs.py",
        "            joined.put(slice(start, start + count), arrays)\n        start += count",
        "            joined.put(slice(start, start + count), arrays)\n            start += count",
        (
            "tests/engine/planning/test_outputs.py::test_rows_with_and_without_logprobs_are_joined_at_their_places",
        ),
    ),
    Mutant(
        "prompt-logprobs-kept-over-a-preemption",
        "engine/planning/scheduler.py",
        "            choice.prompt_parts = []\n",
        "            pass\n",
        (
            "tests/engine/test_engine.py"
            "::test_prompt_logprobs_begin_again_when_a_prompt_is_preempted",
        ),
    ),
    Mutant(
        "hashes-stale-after-a-preemption",
        "engine/planning/scheduler.py",
        "        choice.hashes = None\n",
        "",
        (f"{BLOCKS}::test_a_preempted_choice_finds_what_it_generated",),
    ),
    Mutant(
        "a-large-body-keeps-its-turn",
        "engine/planning/arrivals.py",
        "arrival, prompt, turn + i)",
        "arrival, prompt, turn)",
        (f"{SCHEDULER}::test_a_large_body_gives_way_to_those_after_it",),
    ),
    Mutant(
        "a-burst-is-admitted-at-once",
        "engine/planning/waiting.py",
        "most = max(self._config.burst_rows, 2 * len(self._table.running))",
        "most = self._config.max_rows",
        (f"{SCHEDULER}::test_a_burst_fills_the_rows_over_some_steps",),
    ),
    Mutant(
        "first-arrival-is-preempted",
        "engine/planning/scheduler.py",
        "victim = max(self._table.running",
        "victim = min(self._table.running",
        (f"{BLOCKS}::test_the_latest_arrival_loses_its_row_and_comes_back_with_its_tokens",),
    ),
    Mutant(
        "promised-blocks-are-given-away",
        "engine/planning/waiting.py",
        "room = self._pool.num_free - self._blocks.num_promised()\n",
        "room = self._pool.num_free\n",
        (f"{BLOCKS}::test_a_block_that_a_waiting_row_needs_is_not_given_away",),
    ),
    Mutant(
        "room-of-idle-shared-blocks-is-counted-twice",
        "engine/planning/waiting.py",
        "        need += self._pool.num_idle(shared)\n",
        "",
        (f"{BLOCKS}::test_shared_blocks_that_nobody_holds_need_room_too",),
    ),
    Mutant(
        "drafter-writes-beyond-granted-blocks",
        "engine/planning/row_blocks.py",
        "num_computed + self._lookahead, limit - 1",
        "num_computed, limit - 1",
        (f"{BLOCKS}::test_blocks_cover_what_the_drafter_writes_ahead",),
    ),
    Mutant(
        "last-token-is-planned-to-be-computed",
        "engine/planning/scheduler.py",
        "< table.limit[rows]\n",
        "<= table.limit[rows]\n",
        (f"{SCHEDULER}::test_nothing_to_do_is_no_plan",),
    ),
    Mutant(
        "blocks-registered-before-their-tokens-are-known",
        "engine/planning/prefixes.py",
        "np.minimum(table.num_settled[rows], table.num_known[rows])",
        "table.num_settled[rows]",
        (
            "tests/engine/planning/test_prefixes.py"
            "::test_full_blocks_are_found_as_far_as_they_are_computed_and_known",
        ),
    ),
    Mutant(
        "requests-share-blocks-without-prefix-caching",
        "engine/planning/prefixes.py",
        'return salt if self._prefix_caching else f"{choice.arrival}/{salt}"',
        "return salt",
        (
            "tests/engine/planning/test_prefixes.py"
            "::test_without_prefix_caching_only_choices_of_one_request_share",
        ),
    ),
    Mutant(
        "min-tokens-do-not-outlast-a-stop-id",
        "engine/planning/settle.py",
        "    stopped &= before >= table.min_known[rows, None]\n",
        "",
        ("tests/engine/planning/test_settle.py::test_why_a_choice_ends",),
    ),
    Mutant(
        "tokens-of-a-vacated-row-are-entered",
        "engine/planning/settle.py",
        "drew = live & plan.samples",
        "drew = plan.samples",
        (
            "tests/engine/planning/test_settle.py"
            "::test_what_a_vacated_row_drew_is_dropped_and_others_keep_their_own",
        ),
    ),
    Mutant(
        "refused-drafts-stay-scheduled",
        "engine/planning/settle.py",
        "    table.num_tokens[rows] -= refused\n",
        "",
        ("tests/engine/planning/test_settle.py::test_refused_drafts_are_taken_back",),
    ),
    Mutant(
        "logprobs-of-the-wrong-frontend",
        "engine/planning/outputs.py",
        "tokens = np.repeat(mine, emission.num_new)",
        "tokens = np.repeat(mine, 1)",
        (
            "tests/engine/planning/test_outputs.py"
            "::test_tokens_held_for_several_frontends_are_told_apart",
        ),
    ),
    Mutant(
        "held-logprobs-lost-when-a-wider-row-comes-in",
        "engine/planning/outputs.py",
        "            self._logprobs.put(slice(None), old)\n",
        "",
        (
            "tests/engine/planning/test_outputs.py"
            "::test_logprobs_are_kept_while_a_wider_row_comes_in",
        ),
    ),
    Mutant(
        "greedy-rows-force-drafts-on-all",
        "engine/planning/drafting.py",
        "and params.seed is not None and not params.greedy",
        "and params.seed is not None",
        ("tests/engine/planning/test_drafting.py::test_whose_tokens_need_the_same_drafts",),
    ),
    Mutant(
        "logprobs-of-no-top-tokens-are-not-wanted",
        "engine/planning/outputs.py",
        "= params.logprobs is not None or num_explicit > 0",
        "= bool(params.logprobs) or num_explicit > 0",
        (
            "tests/engine/planning/test_outputs.py"
            "::test_logprobs_of_chosen_tokens_alone_are_reported",
        ),
    ),
    Mutant(
        "a-preempted-choice-is-looked-up-twice",
        "engine/planning/waiting.py",
        "        if choice.num_cached is None:\n",
        "        if choice.prompt_len:\n",
        (f"{SCHEDULER}::test_prefix_counters_count_a_choice_once",),
    ),
    Mutant(
        "prompt-logprobs-begin-after-reused-blocks",
        "engine/planning/waiting.py",
        "reusable = min(reusable, wanted.start - 1)",
        "reusable = min(reusable, wanted.start)",
        ("tests/engine/test_engine.py::test_prompt_logprobs_are_complete_whatever_the_chunks",),
    ),
    Mutant(
        "other-choices-do-not-wait-for-the-prompt",
        "engine/planning/unfinished.py",
        "table.num_settled[row] >= choice.prompt_len",
        "table.num_known[row] >= choice.prompt_len",
        (f"{SCHEDULER}::test_later_choices_wait_for_the_prompt_and_no_longer",),
    ),
    Mutant(
        "a-stop-at-the-limit-is-reported-as-length",
        "engine/planning/settle.py",
        "    finish[ends] = Finish.LENGTH\n" + _STOPS,
        _STOPS + "    finish[ends] = Finish.LENGTH\n",
        ("tests/engine/planning/test_settle.py::test_why_a_choice_ends",),
    ),
    Mutant(
        "rows-go-on-into-blocks-they-lack",
        "engine/planning/repeats.py",
        "* size - table.num_computed[rows]\n",
        "* size - table.num_computed[rows] + 1\n",
        (REPEATED,),
    ),
    Mutant(
        "rows-go-on-beyond-their-limit",
        "engine/planning/repeats.py",
        "- table.num_drawing[rows]\n",
        "- table.num_drawing[rows] + 1\n",
        (REPEATED,),
    ),
    Mutant(
        "rows-go-on-though-one-was-released",
        "engine/planning/scheduler.py",
        "if not self._waiting and not self._released and (plan",
        "if not self._waiting and (plan",
        (REPEATED,),
    ),
    Mutant(
        "a-limit-is-not-looked-for-where-nothing-stops",
        "engine/planning/settle.py",
        "np.count_nonzero(known + num_drawn >= limit)",
        "np.count_nonzero(known + num_drawn > limit)",
        (ENDS,),
    ),
    Mutant(
        "a-step-is-passed-on-before-what-rows-hold",
        "engine/planning/outputs.py",
        " and not np.count_nonzero(held):",
        ":",
        (PASSED_ON,),
    ),
    Mutant(
        "tokens-of-rows-that-are-not-due-are-passed-on",
        "engine/planning/outputs.py",
        "if num_due and num_due == len(rows) and",
        "if num_due and",
        (PASSED_ON,),
    ),
    Mutant(
        "a-choice-ends-without-statistics",
        "engine/loop.py",
        "ends = np.count_nonzero(output.finish) or output.item_scores",
        "ends = output.item_scores",
        (
            "tests/engine/test_loop.py"
            "::test_an_output_has_statistics_where_a_choice_ends_or_the_last_ones_are_old",
        ),
    ),
    Mutant(
        "rows-with-seeds-have-as-many-drafts-as-pay",
        "engine/planning/drafting.py",
        "        if bool(table.is_pinned[running].any()):\n            return self.num_tokens\n",
        "",
        (
            "tests/engine/planning/test_drafting.py"
            "::test_rows_with_seeds_have_all_drafts_whatever_pays",
        ),
    ),
    Mutant(
        "later-rates-are-remembered-as-they-were",
        "engine/planning/draft_choice.py",
        "            all_accepted[j + 1] = all_accepted[j] * before\n",
        "            all_accepted[j + 1] = before\n",
        ("tests/engine/planning/test_draft_choice.py::test_tokens_are_a_product_of_rates",),
    ),
    Mutant(
        "a-choice-that-came-with-a-step-has-as-many-drafts-as-its-rows",
        "engine/planning/scheduler.py",
        "            num_proposed = max(num_drafts, wanted)\n",
        "            num_proposed = num_drafts or wanted\n",
        (
            "tests/engine/planning/test_drafting.py"
            "::test_rows_with_seeds_have_all_drafts_whatever_pays",
        ),
    ),
)
