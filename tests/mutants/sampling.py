"""Mutants of the sampler."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SAMPLING = (
    Mutant(
        "ties-beyond-the-cut-are-reported-by-torch",
        "sampling/paths/torch_path.py",
        "kept = own_last.keeps(values[i : i + 1], torch.arange(rows.vocab_size))",
        "kept = values[i : i + 1] >= own_last.thresholds[:, None]",
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
)
