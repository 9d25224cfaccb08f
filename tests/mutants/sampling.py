"""Mutants of the sampler."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SAMPLING = (
    Mutant(
        "ends-are-banned-in-a-prompt-s-logprobs",
        "sampling/paths/prompt_logprobs.py",
        "            min_tokens=0,\n",
        "",
        (
            "tests/sampling/paths/test_prompt_logprobs.py"
            "::test_what_counts_the_output_has_no_effect_on_a_prompt",
        ),
    ),
    Mutant(
        "the-last-of-the-ties-that-top-k-keeps-is-not-counted-for-top-p",
        "sampling/filters/scan.py",
        "| (token_ids <= row.limit_id)",
        "| (token_ids < row.limit_id)",
        (
            "tests/sampling/filters/test_stages_kernels.py"
            "::test_a_top_p_may_need_the_last_of_the_ties_that_top_k_keeps",
        ),
        interpreted=True,
    ),
    Mutant(
        "ties-in-another-tile-do-not-count-for-a-rank",
        "sampling/kernels/logprobs.py",
        "reaches = tile_maxima(work, at, True, flags) >= threshold",
        "reaches = tile_maxima(work, at, True, flags) > threshold",
        ("tests/sampling/kernels/test_logprobs_kernels.py::test_ties_masks_and_strides",),
        interpreted=True,
    ),
    Mutant(
        "ranks-after-the-last-tie-keep-theirs",
        "sampling/filters/masses.py",
        "tl.where(is_held(source, tile), found_id, tile * TILE + TILE - 1)",
        "found_id",
        ("tests/sampling/sharded/test_sharded_kernels.py::test_cuts_are_those_of_one_rank",),
        interpreted=True,
    ),
    Mutant(
        "a-rank-keeps-ties-as-if-none-were-on-ranks-before-it",
        "sampling/filters/plain.py",
        "quota = prefix.num_equal - all_equal[:rank].sum(0)",
        "quota = prefix.num_equal",
        (
            "tests/sampling/test_vocab_shard_properties.py"
            "::test_rows_of_every_kind_are_drawn_as_by_one_rank",
        ),
    ),
    Mutant(
        "the-first-id-of-a-rank-is-read-from-the-one-before",
        "sampling/vocab_shard.py",
        "owners += token_ids >= first",
        "owners += token_ids > first",
        (
            "tests/sampling/test_vocab_shard_properties.py"
            "::test_rows_of_every_kind_are_drawn_as_by_one_rank",
        ),
    ),
    Mutant(
        "notes-of-a-later-rank-begin-where-the-first-one-s-do",
        "sampling/sharded/scan.py",
        "                words += before  # where a tile's notes begin\n",
        "                words += 0\n",
        ("tests/sampling/sharded/test_sharded_kernels.py::test_cuts_are_those_of_one_rank",),
        interpreted=True,
    ),
    Mutant(
        "ties-beyond-the-cut-are-reported-by-torch",
        "sampling/paths/torch_path.py",
        "kept = cut.keeps(processed.values[i : i + 1], shard.token_ids())[0]",
        "kept = processed.values[i] >= cut.thresholds",
        (
            "tests/sampling/paths/test_torch_path.py"
            "::test_tokens_that_equal_the_last_one_kept_are_not_shown",
        ),
    ),
    Mutant(
        "ties-beyond-the-cut-are-reported-by-the-kernel",
        "sampling/kernels/report.py",
        "kept = kept & is_kept(values, token_ids, cut, last)",
        "kept = kept & (values >= cut)",
        (
            "tests/sampling/kernels/test_report_kernels.py"
            "::test_tokens_that_equal_the_last_one_kept_are_not_shown",
        ),
        interpreted=True,
    ),
    Mutant(
        "statistics-of-tiles-that-are-not-there-are-stored",
        "sampling/kernels/tile_pass.py",
        "tl.store(stats.masses + out, masses, mask=inside)",
        "tl.store(stats.masses + out, masses)",
        (
            "tests/sampling/kernels/test_tile_pass_kernels.py"
            "::test_a_partial_group_of_tiles_writes_nothing_behind_its_row",
        ),
        interpreted=True,
    ),
    Mutant(
        "presence-penalty-on-prompt-tokens",
        "sampling/penalties.py",
        "torch.where(count > 0, presence, 0.0)",
        "torch.where(words > 0, presence, 0.0)",
        ("tests/sampling/test_penalties.py::test_penalize_equals_a_plain_loop",),
    ),
    Mutant(
        "repetition-penalty-favours-negative-logits",
        "sampling/penalties.py",
        "torch.where(logits > 0, logits / repetition, logits * repetition)",
        "logits / repetition",
        ("tests/sampling/test_penalties.py::test_penalize_equals_a_plain_loop",),
    ),
    Mutant(
        "a-cut-keeps-all-tokens-that-equal-it",
        "sampling/race.py",
        "kept &= (logits > thresholds) | (token_ids <= last)",
        "kept &= logits >= thresholds",
        ("tests/sampling/filters/test_plain.py::test_among_ties_the_lowest_ids_are_kept",),
    ),
    Mutant(
        "a-mask-is-nan-at-a-huge-temperature",
        "sampling/race.py",
        "temperature.reciprocal().clamp(MIN_SCALE, MAX_SCALE)",
        "temperature.reciprocal().clamp(max=MAX_SCALE)",
        ("tests/sampling/test_race.py::test_a_mask_holds_at_any_temperature",),
    ),
    Mutant(
        "the-kernels-exponential-loses-the-tail",
        "sampling/noise.py",
        "    return (u - (1.0 - w)) - tl.log(w)",
        "    return -tl.log(w)",
        (
            "tests/sampling/test_noise_kernels.py"
            "::test_exponentials_lose_no_digits_down_to_the_smallest_uniform",
        ),
        interpreted=True,
    ),
    Mutant(
        "padding-of-listed-ids-is-id-0",
        "sampling/paths/listed_logprobs.py",
        "torch.where(id_lists < 0, id_lists[:, :1], id_lists).long()",
        "id_lists.clamp(min=0).long()",
        ("tests/sampling/paths/test_listed_logprobs.py::test_values_and_the_mass_of_all_others",),
    ),
    Mutant(
        "a-grammar-s-mask-comes-after-the-filters",
        "sampling/paths/torch_path.py",
        "last = _cuts(values, batch, rows)",
        "last = _cuts(process(raw, batch, rows, masked=False), batch, rows)",
        ("tests/sampling/test_sampler_grammar.py::test_draws_have_the_restricted_distribution",),
    ),
    Mutant(
        "a-grammar-s-mask-is-one-logit-row-late",
        "sampling/paths/torch_edits.py",
        "slot = int(batch.mask_slots[i])",
        "slot = int(batch.mask_slots[i - 1])",
        (
            "tests/sampling/speculative/test_verification_distribution.py"
            "::test_the_distribution_is_the_target_s_and_acceptance_is_what_theory_says",
        ),
    ),
    Mutant(
        "kernels-read-a-grammar-s-mask-by-the-sampling-row",
        "sampling/kernels/logits.py",
        "slot = tl.load(source.mask_slots + i)",
        "slot = tl.load(source.mask_slots)",
        (
            "tests/sampling/kernels/test_logits_kernels.py"
            "::test_each_logit_row_has_the_mask_of_its_slot",
        ),
        interpreted=True,
    ),
    Mutant(
        "what-is-kept-leaves-bias-out",
        "sampling/kernels/logits.py",
        "if what != _LASTING_BANS:",
        "if what == _EVERYTHING:",
        (
            "tests/sampling/kernels/test_logits_kernels.py"
            "::test_what_is_kept_counts_bias_in_both_masses",
        ),
        interpreted=True,
    ),
    Mutant(
        "masks-hide-what-makes-a-row-unusable",
        "sampling/kernels/logits.py",
        'return raw + tl.where(tl.reshape(bits, (tiles, TILE)) != 0, -0.0, float("-inf"))',
        'return tl.where(tl.reshape(bits, (tiles, TILE)) != 0, raw, float("-inf"))',
        (
            "tests/sampling/kernels/test_tile_pass_kernels.py"
            "::test_masks_of_grammars_alone_take_another_way_to_the_same",
        ),
        interpreted=True,
    ),
    Mutant(
        "masks-that-leave-nothing-blame-the-logits",
        "sampling/kernels/tile_pass.py",
        'masses = tl.where((worst == 1) & (maxima == float("-inf")), MASKED_OUT, masses)',
        "masses = masses",
        (
            "tests/sampling/kernels/test_logits_kernels.py"
            "::test_masks_that_leave_nothing_are_told_from_unusable_logits",
        ),
        interpreted=True,
    ),
    Mutant(
        "rows-without-drafts-verify-those-of-an-earlier-choice",
        "sampling/speculative/torch_blocks.py",
        "given = (depth < drafts.num_drafts[alive])",
        "given = (depth <= drafts.num_drafts[alive])",
        ("tests/sampling/speculative/test_verification.py::test_tokens_equal_the_reference",),
    ),
    Mutant(
        "later-drafts-have-the-masks-of-the-first",
        "sampling/speculative/drafting.py",
        "own = SamplingBatch(batch.rows, positions, batch.rows_np, batch.needs)",
        "own = batch",
        ("tests/sampling/speculative/test_drafting.py::test_drafts_equal_the_reference",),
    ),
    Mutant(
        "a-vacated-row-needs-what-it-needed",
        "sampling/rows.py",
        "        self._last_needs = None\n        self.flags_np[row] = 0\n",
        "        self.flags_np[row] = 0\n",
        (
            "tests/sampling/test_rows.py"
            "::test_needs_follow_a_row_that_changes_between_two_steps_of_the_same_rows",
        ),
    ),
    Mutant(
        "draft-logits-lie-as-close-as-drafts-are-verified",
        "sampling/speculative/verdict.py",
        "depths=0 if drafts.logits is None else drafts.logits.shape[1],",
        "depths=k,",
        (
            "tests/sampling/speculative/test_verification_kernels.py"
            "::test_fewer_drafts_are_verified_than_draft_logits_are_kept",
        ),
        interpreted=True,
    ),
)
