"""Every token of replies has the target's distribution given those before it, whatever drafts.

The probability integral transform (Rosenblatt 1952; randomized for discrete laws, Smith 1985): with
F the sum of p over the tokens that are likelier than the drawn x, and V uniform, F + V p(x) is
uniform and independent of all that came before. So are those of all tokens of a reply together,
however steps, drafts and numbers of drafts depended on earlier tokens. p is transformers', in
float64. Two chi-square tests, of values and of pairs that follow one another, have odds of 1e-6
of a false alarm each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Request
from engine.runner.speculation import Speculation
from engine.speculative_config import SpeculativeConfig, draft_counts
from engine.startup.build import build_engine
from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.params import SamplingParams
from sampling.selftest.statistics import chi_square
from sampling.speculative.verification import verify
from tests.engine.runner.drawn_replies import LENGTH, NUM_CHOICES, K, change_counts
from tests.engine.speculation.every_drafter import KINDS, write_kind

ODDS = 1e-6
BINS, PAIR_BINS = 24, 6
PROMPT = [3, 14, 15, 92, 65, 3, 14, 15]
PARAMS = SamplingParams(seed=5, temperature=0.2)
"""So cold that the tiny models' distributions are far from even, and from one another."""
QUICK = {("dflash", "block", False), ("dspark", "standard", True), ("eagle", "block", True)}
CASES = [
    pytest.param(
        name, how, changes, marks=[] if (name, how, changes) in QUICK else pytest.mark.slow
    )
    for name, kind in KINDS.items()
    for how in ("greedy", "standard", "block")
    if kind.is_drawn or how == "greedy"
    for changes in (False, True)
]


def replies(folder: Path, fields: dict[str, Any], how: str) -> tuple[Engine, torch.Tensor]:
    """Let an engine write replies int64 [NUM_CHOICES, LENGTH]."""
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(
                model=str(folder / "target"), device="cpu", dtype="float32", max_model_len=64
            ),
            cache=CacheConfig(block_size=8, num_blocks=900),
            scheduler=SchedulerConfig(max_rows=NUM_CHOICES, max_step_tokens=1024),
            speculation=SpeculativeConfig(
                num_speculative_tokens=K,
                draft_sample_method="greedy" if how == "greedy" else "gumbel",
                rejection_sample_method="block" if how == "block" else "standard",
                **fields,
            ),
        )
    )
    prompt = np.array(PROMPT, dtype=np.int32)
    engine.submit(
        b"",
        Request(
            handle=0,
            prompt_token_ids=prompt,
            params=PARAMS,
            n=NUM_CHOICES,
            max_tokens=LENGTH,
            emit_interval=LENGTH,
        ),
    )
    texts: list[torch.Tensor] = []
    while engine.has_work:
        for _, output in engine.step():
            texts.append(torch.from_numpy(output.token_ids.reshape(-1, LENGTH).copy()))
    return engine, torch.cat(texts).long()


@torch.inference_mode()
def transforms(target: PreTrainedModel, texts: torch.Tensor) -> torch.Tensor:
    """The transforms of replies' tokens, float64 [NUM_CHOICES, LENGTH]."""
    prompts = torch.tensor(PROMPT).expand(len(texts), -1)
    logits = target.double()(torch.cat([prompts, texts], dim=1), use_cache=False).logits
    p = (logits[:, len(PROMPT) - 1 : -1] / PARAMS.temperature).softmax(-1)
    own = p.gather(2, texts[:, :, None])
    before = torch.where(p > own, p, 0.0).sum(-1)
    generator = torch.Generator().manual_seed(7)
    uniform = torch.rand(texts.shape, dtype=torch.float64, generator=generator)
    values: torch.Tensor = before + uniform * own[:, :, 0]
    return values


def p_values(values: torch.Tensor) -> tuple[float, float]:
    """Of the values, and of pairs that follow one another without a value in common."""

    def even(cells: torch.Tensor, count: int) -> float:
        wanted = torch.full((count,), 1.0 / count, dtype=torch.float64)
        return chi_square(torch.bincount(cells, minlength=count), wanted, ODDS).p_value

    cells = (values * BINS).long().clamp(max=BINS - 1).flatten()
    coarse = (values * PAIR_BINS).long().clamp(max=PAIR_BINS - 1)
    pairs = (coarse[:, 0::2] * PAIR_BINS + coarse[:, 1::2]).flatten()
    return even(cells, BINS), even(pairs, PAIR_BINS**2)


@pytest.mark.parametrize(("name", "how", "changes"), CASES)
def test_tokens_are_the_targets(
    tmp_path: Path, name: str, how: str, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, fields = write_kind(name, tmp_path)
    used = change_counts(monkeypatch) if changes else set()
    engine, texts = replies(tmp_path, fields, how)
    assert texts.shape == (NUM_CHOICES, LENGTH)
    assert min(p_values(transforms(target, texts))) > ODDS
    stats = engine.stats().drafts
    assert stats is not None
    assert 0 < stats.num_accepted < stats.num_draft_tokens
    assert used == (set(draft_counts(K)) if changes else set())


def test_a_bug_that_is_put_back_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are verified by another q than the one they were drawn from."""

    def inverted(
        self: Speculation, logits: torch.Tensor, batch: SamplingBatch, drafts: Drafts
    ) -> Verification:
        own = self.drafter.draft_logits
        assert own is not None
        drafts = drafts._replace(logits=-own)
        return verify(logits, batch, self.sampling_rows, drafts, self.method, self.rates)

    monkeypatch.setattr(Speculation, "verify", inverted)
    target, fields = write_kind("dflash", tmp_path)
    _, texts = replies(tmp_path, fields, "block")
    assert min(p_values(transforms(target, texts))) < ODDS
