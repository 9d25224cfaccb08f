"""Suffix drafts through the whole engine: what they may not change, and that they are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.speculative_config import SpeculativeConfig
from sampling.params import SamplingParams
from tests.engine.runner.drafting_engines import GREEDY, make, requests, run

SEEDED = SamplingParams(seed=3, temperature=0.2)


def suffixes(**fields: Any) -> SpeculativeConfig:
    return SpeculativeConfig(method="suffix", num_speculative_tokens=6, **fields)


@pytest.mark.parametrize(("num_blocks", "kept"), [(200, 0), (22, 16)])
def test_greedy_rows_keep_their_tokens(folder: Path, num_blocks: int, kept: int) -> None:
    asked = requests([GREEDY], max_tokens=24)
    plain = run(make(folder, None), asked)
    drafting = suffixes(suffix_decoding_max_cached_requests=kept)
    engine = make(folder, drafting, num_blocks)
    drafted = run(engine, asked)
    assert {key: reply.tokens for key, reply in drafted.items()} == {
        key: reply.tokens for key, reply in plain.items()
    }
    first = engine.stats().drafts
    assert first is not None
    assert first.num_accepted > 0
    run(engine, asked)  # the outputs of the first time say what comes, from the first tokens on
    both = engine.stats().drafts
    assert both is not None
    again = both.num_accepted - first.num_accepted
    assert (again > 1.25 * first.num_accepted) == (kept > 0)


def test_seeded_rows_depend_on_nothing_but_themselves(folder: Path) -> None:
    """Neither on drafts, outputs of others, of which there are more the second time, nor load."""
    asked = requests([SEEDED])
    plain = run(make(folder, None), asked)
    engine = make(folder, suffixes(suffix_decoding_max_cached_requests=8), 22)
    first = run(engine, asked)
    again = run(engine, asked)
    alone = run(make(folder, suffixes()), asked, steps_between=40)
    assert first == again == alone == plain
    stats = engine.stats().drafts
    assert stats is not None
    assert 0 < stats.num_accepted < stats.num_draft_tokens
