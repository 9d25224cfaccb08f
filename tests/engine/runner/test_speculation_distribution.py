"""The output's distribution under speculation is the target's: joint counts of whole sequences.

A check has odds of 1e-6 of a false alarm. Each must fail when what it guards against is put back:
draft logits of the later steps left unwritten, a penalty that misses the drafts before it, one
stream of noise for the draft and the recovered token, matching where rejection is due.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.drafter import VerifiedStep
from engine.engine import Engine
from engine.runner.speculation import Speculation
from engine.speculative_config import RejectionSampleMethod, SpeculativeConfig
from engine.startup import built_runner
from engine.startup.build import build_engine
from engine.stats import DraftStats
from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.speculative import draws
from tests.engine.exact import Target
from tests.engine.runner.drawn_drafts import LENGTH, NUM_CHOICES, ODDS, PROMPT, K, draw, p_value
from tests.engine.runner.table_drafter import TableDrafter, draft_from
from tests.engine.tiny_models import VOCAB, write_model

SIGMAS = 4.9  # two-sided odds of 1e-6
ALLOWED = (3, 14, 20, 31)

PARAMS = {
    "T 1": SamplingParams(seed=11, allowed_token_ids=ALLOWED),
    "T 0.7, top-p": SamplingParams(seed=12, temperature=0.7, top_p=0.9, allowed_token_ids=ALLOWED),
    "penalties": SamplingParams(
        seed=13,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=0.7,
        allowed_token_ids=ALLOWED,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model("llama", folder)
    return folder


@pytest.fixture(scope="module")
def targets(folder: Path) -> dict[str, Target]:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return {name: Target(model, PROMPT, params, LENGTH) for name, params in PARAMS.items()}


@pytest.fixture
def table(targets: dict[str, Target], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The drafter's: what the target says after the prompt and one token, and noise."""
    generator = torch.Generator().manual_seed(5)
    table = torch.randn((VOCAB, VOCAB), generator=generator)
    for token in ALLOWED:
        table[token] += torch.from_numpy(targets["T 1"].logits[token,])
    draft_from(table, monkeypatch)
    return table


def config(method: RejectionSampleMethod = "standard", **fields: Any) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="eagle",
        model="none",
        num_speculative_tokens=K,
        rejection_sample_method=method,
        disable_by_batch_size=NUM_CHOICES,  # else so many rows draft only where seeds need it
        **fields,
    )


def make(folder: Path, speculation: SpeculativeConfig) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu", max_model_len=64),
            cache=CacheConfig(block_size=8, num_blocks=2400),
            scheduler=SchedulerConfig(max_rows=384, max_step_tokens=2048),
            speculation=speculation,
        )
    )


@pytest.mark.parametrize("sample_method", ["greedy", "gumbel"])
@pytest.mark.parametrize("name", PARAMS)
def test_sequences_have_the_targets_probabilities(
    folder: Path, targets: dict[str, Target], table: torch.Tensor, name: str, sample_method: str
) -> None:
    engine = make(folder, config(draft_sample_method=sample_method))
    counts, stats = draw(engine, PARAMS[name])
    assert p_value(counts, targets[name]) > ODDS
    assert 0.1 < stats.num_accepted / stats.num_draft_tokens < 0.9


def skip_later_draft_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TableDrafter.propose

    def propose(self: TableDrafter, step: VerifiedStep) -> torch.Tensor:
        assert self.draft_logits is not None
        before = self.draft_logits[:, 1:].nan_to_num().clone()
        drafts = honest(self, step)
        self.draft_logits[:, 1:] = before
        return drafts

    monkeypatch.setattr(TableDrafter, "propose", propose)


def drop_the_penalty_of_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Speculation.verify

    def verify(
        self: Speculation, logits: torch.Tensor, batch: SamplingBatch, drafts: Drafts
    ) -> Verification:
        assert batch.depths is not None
        blind = dataclasses.replace(batch, depths=torch.zeros_like(batch.depths))
        return honest(self, logits, blind, drafts)

    monkeypatch.setattr(Speculation, "verify", verify)


def share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovered token races on the noise that drew the draft it replaces."""
    monkeypatch.setattr(draws, "RESIDUAL", Purpose.DRAFT)


@pytest.mark.parametrize(
    ("mutate", "name"),
    [
        (skip_later_draft_logits, "T 1"),
        (drop_the_penalty_of_drafts, "penalties"),
    ],
)
def test_the_check_fails_where_a_bug_is_put_back(
    folder: Path,
    targets: dict[str, Target],
    table: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    name: str,
) -> None:
    mutate(monkeypatch)
    counts, _ = draw(make(folder, config(draft_sample_method="gumbel")), PARAMS[name])
    assert p_value(counts, targets[name]) < ODDS


def test_a_stream_shared_by_draft_and_recovered_token_shows(
    folder: Path, targets: dict[str, Target], table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two likeliest tokens are recovered; the draft's noise speaks against the first.

    Having lost the draft's race for q, a token's exponential is large where its q was.
    """
    target = targets["T 1"]
    for first in target.ids:
        p = target.next_token((first,))
        one, other, third, last = sorted(target.ids, key=lambda token: -p[token])
        q = {one: 0.65 * p[one], other: 1e-4, last: p[last]}
        q[third] = 1.0 - sum(q.values())
        table[first, list(q)] = torch.tensor(list(q.values())).log()
    for is_shared in (False, True):
        if is_shared:
            share_a_stream(monkeypatch)
        engine = make(folder, config(draft_sample_method="gumbel"))
        params = msgspec.structs.replace(PARAMS["T 1"], seed=21)
        counts, _ = draw(engine, params, length=2, count=8000)
        assert (p_value(counts, target) < ODDS) == is_shared


def expected_acceptance(
    target: Target, table: torch.Tensor, temperature: float, *, one_hot: bool
) -> float:
    """Σ p(first draft), or Σ min(p, q), of the second token, over all first ones."""
    ids = list(target.ids)
    total = 0.0
    for first, before in target.next_token(()).items():
        p = np.array(list(target.next_token((first,)).values()))
        logits = table[first, ids].double().numpy() / temperature
        q = np.exp(logits - logits.max())
        q /= q.sum()
        total += before * (p[q.argmax()] if one_hot else np.minimum(p, q).sum())
    return total


@pytest.mark.parametrize("sample_method", ["greedy", "gumbel"])
@pytest.mark.parametrize("name", ["T 1", "T 0.7, top-p"])
def test_acceptance_is_what_theory_says(
    folder: Path, targets: dict[str, Target], table: torch.Tensor, name: str, sample_method: str
) -> None:
    params = PARAMS[name]
    engine = make(folder, config(draft_sample_method=sample_method))
    _, stats = draw(engine, params, length=2)
    wanted = expected_acceptance(
        targets[name], table, params.temperature, one_hot=sample_method == "greedy"
    )
    assert stats.num_drafts == stats.num_draft_tokens == NUM_CHOICES
    assert abs(sigmas(stats, wanted)) < SIGMAS


def sigmas(stats: DraftStats, wanted: float) -> float:
    """How far the acceptance of first drafts is from a probability, in standard deviations."""
    deviation: float = (wanted * (1 - wanted) / stats.num_drafts) ** 0.5
    return (stats.accepted_at[0] / stats.num_drafts - wanted) / deviation


def test_strict_matching_accepts_too_little(
    folder: Path, targets: dict[str, Target], table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Σ p q in place of Σ min(p, q): the right tokens, too few of them at a time."""
    honest = built_runner.make_speculation

    def make_strict(*args: Any) -> Speculation:
        speculation = honest(*args)
        assert speculation is not None
        return dataclasses.replace(speculation, method="coupled")

    monkeypatch.setattr(built_runner, "make_speculation", make_strict)
    _, stats = draw(make(folder, config(draft_sample_method="gumbel")), PARAMS["T 1"], length=2)
    wanted = expected_acceptance(targets["T 1"], table, 1.0, one_hot=False)
    assert sigmas(stats, wanted) < -SIGMAS


def test_synthetic_acceptance_has_the_rates_asked_for(folder: Path, table: torch.Tensor) -> None:
    engine = make(folder, config("synthetic", synthetic_acceptance_rates=(0.8, 0.5, 0.2)))
    _, stats = draw(engine, PARAMS["T 1"], length=K + 2)
    first_steps = [stats.accepted_at[0] / stats.num_drafts]
    assert first_steps == pytest.approx([0.8], abs=SIGMAS * (0.16 / stats.num_drafts) ** 0.5)
