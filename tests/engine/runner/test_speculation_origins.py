"""Where tokens came from, as every method of verification tells it, against counts of drafts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.engine import Engine
from engine.messages.request import Request
from engine.messages.step_output import Origin
from engine.speculative_config import SpeculativeConfig
from sampling.params import SamplingParams
from tests.engine.origins import draft_counts
from tests.engine.runner.drafting_engines import (
    GREEDY,
    config,
    learn,
    make,
    requests,
    run,
)
from tests.engine.traffic import Inbox

K = 4
SEEDED = SamplingParams(seed=3, temperature=0.2)
RATES = (0.9, 0.8, 0.7, 0.6)
METHODS: dict[str, tuple[dict[str, Any], SamplingParams]] = {
    "standard": ({}, SEEDED),
    "gumbel": ({"draft_sample_method": "gumbel"}, SEEDED),
    "block": ({"method": "block"}, SEEDED),
    "greedy rows": ({}, GREEDY),
    "coupled": ({"method": "coupled"}, SEEDED),
    "synthetic": ({"method": "synthetic", "synthetic_acceptance_rates": RATES}, SEEDED),
}


def read(engine: Engine, asked: list[Request]) -> Inbox:
    """Submit requests with steps between them."""
    inbox, waiting = Inbox(), list(asked)
    while waiting or engine.has_work:
        if waiting:
            engine.submit(b"", waiting.pop(0))
        for _ in range(2):
            for _, output in engine.step():
                inbox.read(output)
    assert not inbox.errors
    return inbox


def check(inbox: Inbox) -> set[Origin]:
    """Every choice's origins agree with its counts; returns those that occurred."""
    seen: set[Origin] = set()
    assert set(inbox.origins) == set(inbox.tokens)
    for key, origins in inbox.origins.items():
        assert len(origins) == len(inbox.tokens[key])
        assert origins[0] == Origin.DRAWN
        num_drafts, _, *accepted_at = inbox.drafts[key]
        assert draft_counts(origins, K) == [num_drafts, *accepted_at]
        seen |= set(origins)
    return seen


@pytest.mark.parametrize("num_blocks", [22, 200])
@pytest.mark.parametrize("name", METHODS)
def test_origins_are_what_was_counted(
    folder: Path, table: torch.Tensor, name: str, num_blocks: int
) -> None:
    fields, params = METHODS[name]
    asked = requests([params], report_origins=True, emit_interval=5)
    plain = run(make(folder, None), asked)
    for _ in range(3):
        learn(table, plain)
    engine = make(folder, config(K, **fields), num_blocks)
    inbox = read(engine, asked)
    assert check(inbox) == set(Origin)
    assert (engine.stats().num_preemptions > 0) == (num_blocks == 22)


WHOLE = {"suffix_decoding_max_spec_factor": 4.0, "suffix_decoding_min_token_prob": 0.0}
"""Wherever a token matches k are drafted."""


@pytest.mark.parametrize(("method", "fields"), [("ngram", {}), ("suffix", WHOLE)])
def test_drafts_of_text(
    folder: Path, method: Literal["ngram", "suffix"], fields: dict[str, Any]
) -> None:
    """Rows without a match draw plainly beside rows that verify drafts."""
    drafting = SpeculativeConfig(method=method, num_speculative_tokens=K, **fields)
    inbox = read(
        make(folder, drafting), requests([GREEDY], report_origins=True, n=2, max_tokens=60)
    )
    assert check(inbox) == set(Origin)
    plain = [origins.count(Origin.DRAWN) for origins in inbox.origins.values()]
    assert max(plain) > 1


def test_only_those_who_ask_are_told(folder: Path, table: torch.Tensor) -> None:
    asked = requests([GREEDY])
    whole = read(make(folder, config(K)), asked)
    assert whole.origins == defaultdict(list)
