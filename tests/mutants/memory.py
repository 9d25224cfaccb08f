"""Mutants of what layers keep: bugs that others have had with states of rows.

Those of prefix caches, drafts and chunks beside recurrent layers; each is named by what was wrong.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

IDENTITY = "tests/engine/memory/test_identity.py"
CUTS = f"{IDENTITY}::test_a_prompt_may_be_cut_anywhere"
RESTORED = f"{IDENTITY}::test_a_prompt_that_begins_as_one_before_is_restored"
TURNS = f"{IDENTITY}::test_turns_of_a_conversation_go_on_from_replies"
STRANGERS = f"{IDENTITY}::test_strangers_in_one_batch_are_as_alone"
PREEMPTED = f"{IDENTITY}::test_preempted_choices_go_on_as_if_they_were_not"
STOPPED = f"{IDENTITY}::test_a_choice_that_stops_leaves_nothing_in_its_row"
SCORED = "tests/engine/memory/test_scored_states.py"
ROWS = "tests/engine/planning/test_row_snapshots.py"

MEMORY = (
    Mutant(
        "keys-are-reused-beyond-the-state",
        "engine/planning/waiting.py",
        "        shared = known[:num_shared]\n",
        "        shared, num_shared = known, len(known)\n",
        (RESTORED,),
        seen=("sglang#22935",),
    ),
    Mutant(
        "a-drafter-holds-back-keys-but-no-state",
        "engine/planning/row_snapshots.py",
        "- self._drafting.looks_ahead",
        "",
        (f"{ROWS}::test_a_drafter_that_looks_ahead_holds_the_last_block_back",),
        seen=("SkyRL#1981", "vllm#43559", "vllm#47194"),
    ),
    Mutant(
        "a-state-off-its-boundary-gets-the-boundarys-hash",
        "engine/planning/row_snapshots.py",
        "        if end in self._reserved[row]:\n",
        "        for end in self._reserved[row]:\n",
        (RESTORED, TURNS),
        seen=("vllm#43559", "vllm#48375", "vllm#47861"),
    ),
    Mutant(
        "a-snapshot-is-found-before-its-drafts-entered",
        "engine/planning/row_snapshots.py",
        "end + lag <= table.num_settled[row]",
        "end <= table.num_settled[row]",
        (f"{ROWS}::test_a_reply_makes_one_every_so_often",),
        seen=("vllm#43559",),
    ),
    Mutant(
        "a-snapshot-is-found-that-was-never-written",
        "engine/planning/row_snapshots.py",
        "            if not self._reserved[row]:\n",
        "            if True:\n",
        (f"{ROWS}::test_a_reply_makes_one_every_so_often", TURNS),
        seen=("sglang#39342",),
    ),
    Mutant(
        "a-snapshot-is-overwritten-by-the-step-that-restores-it",
        "engine/memory/snapshots.py",
        "        self._restored.add(snapshot)\n",
        "        pass\n",
        ("tests/engine/memory/test_snapshots.py::test_what_a_step_restores_is_not_written_by_it",),
    ),
    Mutant(
        "prompts-are-taken-for-decodes-by-their-length",
        "engine/memory/states.py",
        "        num_rows, parts = len(query_starts_np) - 1, []\n",
        "        num_rows, parts = len(query_starts_np) - 1, []\n"
        "        lens = np.diff(query_starts_np)\n"
        "        num_decodes = int(np.argmin(np.append(lens == lens[0], False)))\n",
        ("tests/engine/memory/test_states.py::test_parts_are_told_by_kind_and_not_by_length",),
        seen=("vllm#53051", "vllm#55766"),
    ),
    Mutant(
        "accepted-drafts-are-counted-one-short",
        "engine/kernels/begin_states.py",
        "torch.where(is_row, begins - table.entered[rows], 0)",
        "torch.where(is_row, (begins - table.entered[rows] - 1).clamp(min=0), 0)",
        (STRANGERS,),
    ),
    Mutant(
        "refused-drafts-enter-the-state",
        "engine/memory/states.py",
        "((0, num_decodes, 1), (num_decodes, num_rows, None))",
        "((0, num_decodes, None), (num_decodes, num_rows, None))",
        (STRANGERS,),
    ),
    Mutant(
        "a-new-row-goes-on-from-the-last-ones-state",
        "engine/memory/states.py",
        "                Writes(table.entered, rows, computed),\n",
        "",
        (STOPPED, STRANGERS),
        seen=("vllm#45096",),
    ),
    Mutant(
        "a-restored-row-reads-its-own-slot",
        "engine/memory/states.py",
        "                Writes(table.sources, rows, self._slots_of(restored)),\n",
        "",
        (RESTORED, TURNS),
    ),
    Mutant(
        "a-row-keeps-making-the-last-ones-snapshots",
        "engine/memory/states.py",
        "                Writes(table.snapshot_ends, rows, NEVER),\n",
        "",
        ("tests/engine/memory/test_states.py::test_slots_are_null_then_rows_then_snapshots",),
        seen=("vllm#45096",),
    ),
    Mutant(
        "a-preempted-rows-snapshots-are-lost",
        "engine/planning/scheduler.py",
        "        if self._snapshots is not None:\n            self._snapshots.release(row)\n",
        "",
        (PREEMPTED, f"{IDENTITY}::test_choices_are_aborted_at_any_time"),
    ),
    Mutant(
        "repeated-plans-pass-a-snapshot",
        "engine/planning/repeats.py",
        "np.minimum(to_block, self._snapshots.num_steps_without(rows))",
        "to_block",
        (TURNS,),
    ),
    Mutant(
        "prompts-are-read-as-if-rows-beside-them-brought-no-drafts",
        "engine/runner/prompt_logprobs.py",
        "start = int(query_starts[span.row_idx])",
        "drafts = (plan.num_query - 1) * plan.decodes\n"
        "    start = int(query_starts[span.row_idx] - drafts[: span.row_idx].sum())",
        (f"{IDENTITY}::test_prompt_logprobs_are_those_of_one_pass",),
        seen=("vllm#53488",),
    ),
    Mutant(
        "prompts-are-read-as-if-each-chunk-were-the-first",
        "engine/runner/prompt_logprobs.py",
        "int(plan.starts[span.row_idx])",
        "0",
        (f"{IDENTITY}::test_prompt_logprobs_are_those_of_one_pass",),
        seen=("vllm#53488",),
    ),
    Mutant(
        "items-begin-beside-their-query",
        "engine/scoring/packing.py",
        "            starts.append(row)\n",
        "",
        (f"{SCORED}::test_scores_are_those_of_whole_texts",),
    ),
    Mutant(
        "branches-begin-without-their-item",
        "engine/scoring/progress.py",
        "        sources[is_branch] = np.array(stems",
        "        _ = np.array(stems",
        (f"{SCORED}::test_branches_begin_from_the_state_after_their_stem",),
    ),
    Mutant(
        "two-stems-of-a-step-share-a-state",
        "engine/scoring/progress.py",
        "np.cumsum(is_stem)[is_branch] - 1]",
        "np.cumsum(is_stem)[is_branch] * 0]",
        (f"{SCORED}::test_branches_begin_from_the_state_after_their_stem",),
    ),
    Mutant(
        "a-request-waits-for-the-state-that-it-holds",
        "engine/scoring/holdings.py",
        "progress.hashes if self._snapshots.num_snapshots > num_snapshots else []",
        "progress.hashes",
        (f"{SCORED}::test_a_held_state_leaves_room_for_those_that_a_request_reserves",),
    ),
    Mutant(
        "a-querys-state-is-evicted-under-its-items",
        "engine/scoring/states.py",
        "        pool.hold(restored)\n",
        "",
        (f"{SCORED}::test_scores_are_those_of_whole_texts",),
    ),
)
