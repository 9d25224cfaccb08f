"""Values of `--speculative-config`, and the errors of those that it refuses."""

from __future__ import annotations

import json

import pytest

from engine.errors import ConfigError
from engine.speculative_config import SpeculativeConfig, parse_speculative_config

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
EAGLE = {"method": "eagle", "model": "head", "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix"}
SYNTHETIC = NGRAM | {"rejection_sample_method": "synthetic"}


def parse(fields: dict[str, object]) -> SpeculativeConfig:
    config = parse_speculative_config(json.dumps(fields))
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"method": "medusa"},
            "method must be one of eagle, eagle3, dflash, dspark, mtp, draft_model, ngram, suffix",
        ),
        ({"num_speculative_tokens": 4}, "method is missing"),
        ({"method": "ngram"}, "num_speculative_tokens is missing"),
        (NGRAM | {"num_speculative_tokens": 0}, "must be from 1 to 16, got 0"),
        (NGRAM | {"num_speculative_tokens": 17}, "must be from 1 to 16, got 17"),
        (NGRAM | {"num_speculative_tokens": "4"}, "Expected `int`, got `str`"),
        (NGRAM | {"num_spec_tokens": 4}, "did you mean 'num_speculative_tokens'"),
        (NGRAM | {"tree": 4}, "unknown field 'tree' (there are method"),
        (NGRAM | {"rejection_sample_method": "strict"}, '"draft_sample_method": "greedy"'),
        (EAGLE | {"rejection_sample_method": "probabilistic"}, '"draft_sample_method": "gumbel"'),
        (EAGLE | {"draft_sample_method": "probabilistic"}, '"draft_sample_method": "gumbel"'),
        (EAGLE | {"draft_sample_method": ["greedy"]}, "must be one of greedy, gumbel"),
        (EAGLE | {"model": None}, "method 'eagle' needs a model"),
        (EAGLE | {"model": ""}, "method 'eagle' needs a model"),
        (EAGLE | {"prompt_lookup_max": 3}, "are for ngram, not eagle"),
        (EAGLE | {"method": "dspark", "model": None}, "method 'dspark' needs a model"),
        (NGRAM | {"model": "x"}, "takes no model"),
        (NGRAM | {"model": ""}, "takes no model"),
        (NGRAM | {"draft_sample_method": "gumbel"}, "no draft logits"),
        (NGRAM | {"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "got 4, 3"),
        (NGRAM | {"prompt_lookup_min": 0}, "at least 1"),
        (SUFFIX | {"draft_sample_method": "gumbel"}, "'suffix' has no draft logits"),
        (SUFFIX | {"model": "x"}, "takes no model"),
        (SUFFIX | {"suffix_decoding_max_tree_depth": 33}, "max_tree_depth must be from 1 to 32"),
        (SUFFIX | {"suffix_decoding_min_token_prob": 1.5}, "min_token_prob must be from 0 to 1"),
        (SUFFIX | {"suffix_decoding_max_spec_factor": 0}, "max_spec_factor must be from 0.03"),
        (SUFFIX | {"suffix_decoding_max_cached_requests": -1}, "must be from 0 to 10000, got -1"),
        (NGRAM | {"suffix_decoding_min_token_prob": 0.1}, "is for suffix, not ngram"),
        (NGRAM | {"rejection_sample_method": "block"}, "'ngram' has no draft logits, without"),
        (
            EAGLE | {"rejection_sample_method": "block", "draft_sample_method": "greedy"},
            "'block' needs draft_sample_method 'gumbel', got 'greedy'",
        ),
        (NGRAM | {"disable_by_batch_size": 0}, "must be at least 1, got 0"),
        (SYNTHETIC, "with neither"),
        (NGRAM | {"synthetic_acceptance_length": 2.0}, "got 'standard' with one"),
        (SYNTHETIC | {"synthetic_acceptance_length": 5.5}, "must be from 1 to 5, got 5.5"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5]}, "must have num_speculative_tokens (4)"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5, 0.6, 0, 0]}, "must not rise"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [1.1, 0, 0, 0]}, "from 0 to 1, got 1.1"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [float("nan")] * 4}, "from 0 to 1, got nan"),
        (
            SYNTHETIC
            | {"synthetic_acceptance_rates": [1, 0, 0, 0], "synthetic_acceptance_length": 2},
            "exclude each other",
        ),
    ],
)
def test_bad_settings_are_one_line_that_names_them(
    fields: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(fields)
    message = str(raised.value)
    assert expected in message
    assert message.startswith("--speculative-config: ")
    assert "\n" not in message


def test_null_turns_speculation_off() -> None:
    assert parse_speculative_config(" null ") is None


@pytest.mark.parametrize("text", ["{", "[1]", "eagle", '"eagle"', ""])
def test_what_is_no_json_object(text: str) -> None:
    with pytest.raises(ConfigError, match="--speculative-config: "):
        parse_speculative_config(text)


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({}, "greedy"),
        ({"draft_sample_method": "greedy"}, "greedy"),
        ({"draft_sample_method": "gumbel"}, "gumbel"),
        ({"rejection_sample_method": "coupled"}, "coupled"),
        ({"rejection_sample_method": "block"}, "gumbel"),
        ({"rejection_sample_method": "coupled", "draft_sample_method": "gumbel"}, "coupled"),
        ({"rejection_sample_method": "coupled", "draft_sample_method": "greedy"}, "greedy"),
    ],
)
def test_where_drafts_come_from(fields: dict[str, object], source: str) -> None:
    assert parse(EAGLE | fields).draft_source == source


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (EAGLE, True),
        (NGRAM, True),
        (EAGLE | {"draft_sample_method": "gumbel"}, False),
        (EAGLE | {"rejection_sample_method": "block"}, False),
        (EAGLE | {"rejection_sample_method": "coupled", "draft_sample_method": "gumbel"}, True),
        (SYNTHETIC | {"synthetic_acceptance_length": 2.0}, False),
    ],
)
def test_whose_seeds_draw_as_without_speculation(fields: dict[str, object], kept: bool) -> None:
    assert parse(fields).keeps_draws == kept


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 7}, (2, 7)),
    ],
)
def test_lookup_lengths(fields: dict[str, object], lengths: tuple[int, int]) -> None:
    assert parse(NGRAM | fields).lookup_lengths == lengths


def test_synthetic_rates_are_those_of_a_draft_whose_predecessors_were_accepted() -> None:
    rates = parse(SYNTHETIC | {"synthetic_acceptance_rates": [0.8, 0.4, 0.0, 0.0]})
    assert rates.acceptance_rates == (0.8, 0.5, 0.0, 0.0)
    length = parse(SYNTHETIC | {"synthetic_acceptance_length": 3.25})
    assert length.acceptance_rates == (1.0, 1.0, 0.25, 0.0)
    assert parse(NGRAM).acceptance_rates is None
