"""Constrained draws have the model's distribution restricted to the grammar's ids, renormalised.

Chi-square with fixed seeds, so the outcome is fixed too; the false-alarm odds are those of choosing
an unlucky seed, `ODDS` each. The wrong ones miss by far: their p-values are below 1e-10.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.batch import SamplingBatch
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.paths import torch_edits, torch_path
from sampling.race import Cut
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig
from sampling.selftest.statistics import chi_square
from tests.sampling.steps import bitmap

ODDS, IMPOSSIBLE = 1e-8, 1e-10
VOCAB, NUM_DRAWS = TILE + 40, 6_000
PROMPT, OUTPUT = [4, 4, 9, 2], [9, TILE + 1, 6]
ALLOWED = [1, 4, 6, 9, 31, 32, 63, 500, TILE - 1, TILE, TILE + 1, VOCAB - 1]
LATER = [0, 1, 5, 9, 32, 64, TILE]  # what the grammar allows one position on
PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.8}
WISHES: dict[str, dict[str, Any]] = {
    "T 1": {},
    "T 0.7": {"temperature": 0.7},
    "top-p and penalties": PENALTIES | {"top_p": 0.9},
    "T 0.7, top-p and penalties": PENALTIES | {"top_p": 0.9, "temperature": 0.7},
}


def make_logits() -> Tensor:
    """float32 [VOCAB]; the allowed ids have a twentieth of the mass."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(6))
    logits[ALLOWED] += 1.5
    return logits


def draw_many(wish: dict[str, Any], allowed: list[int]) -> Tensor:
    """Draw the next token at many positions of one request, int64 [NUM_DRAWS]."""
    tokens = torch.tensor([PROMPT + OUTPUT], dtype=torch.int32)
    rows = SamplingRows(1, VOCAB, torch.device("cpu"), history=tokens, max_masks=2)
    params = SamplingParams(constrained=True, **wish)
    rows.add(0, params, seed=77, choice=0, prompt_len=len(PROMPT), num_tokens=tokens.shape[1])
    rows.flush()
    rows.put_masks(np.stack([bitmap(LATER, VOCAB), bitmap(allowed, VOCAB)]))
    rows_np = np.zeros(NUM_DRAWS, dtype=np.int32)
    batch = SamplingBatch(
        torch.from_numpy(rows_np),
        torch.arange(NUM_DRAWS) + 7,
        rows_np,
        rows.needs(rows_np),
        mask_slots=torch.ones(NUM_DRAWS, dtype=torch.int32),
    )
    logits = make_logits().expand(NUM_DRAWS, -1)
    return Sampler(SamplerConfig(), rows)(logits, batch).token_ids.long()


def expected(wish: dict[str, Any]) -> Tensor:
    """p restricted to the allowed ids and renormalised, float64 [VOCAB]."""
    params = SamplingParams(**wish)
    x = reference.penalize(
        make_logits().double().numpy(),
        np.bincount(OUTPUT, minlength=VOCAB),
        np.isin(np.arange(VOCAB), PROMPT),
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    x = np.where(reference.allowed(bitmap(ALLOWED, VOCAB), VOCAB), x, -np.inf)
    kept = reference.kept(x, temperature=params.temperature, top_p=params.top_p)
    x = np.where(kept, x, -np.inf) / params.temperature
    return torch.softmax(torch.from_numpy(x), 0)


def p_value(wish: dict[str, Any], allowed: list[int] = ALLOWED) -> float:
    counts = torch.bincount(draw_many(wish, allowed), minlength=VOCAB)
    return chi_square(counts, expected(wish), ODDS).p_value


@pytest.mark.parametrize("name", WISHES)
def test_draws_have_the_restricted_distribution(name: str) -> None:
    assert p_value(WISHES[name]) > ODDS


def test_another_position_s_mask_is_found() -> None:
    assert p_value(WISHES["T 1"], LATER) < IMPOSSIBLE


def test_a_mask_after_the_filters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Top-p then keeps a share of mass that the grammar forbids, and too few of the others."""
    cuts = torch_path._cuts

    def unmasked_cuts(values: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Cut:
        raw = make_logits().expand(NUM_DRAWS, -1)
        return cuts(torch_edits.process(raw, batch, rows, masked=False), batch, rows)

    monkeypatch.setattr(torch_path, "_cuts", unmasked_cuts)
    assert p_value(WISHES["T 0.7, top-p and penalties"]) < IMPOSSIBLE


def test_a_row_without_a_slot_is_not_masked_and_neighbours_do_not_matter() -> None:
    """Of three rows with a grammar the first has no mask at this step, the others one each."""
    history = torch.zeros((4, 8), dtype=torch.int32)
    rows = SamplingRows(4, VOCAB, torch.device("cpu"), history=history, max_masks=3)
    for row, constrained in enumerate((True, True, True, False)):
        params = SamplingParams(temperature=0.0, constrained=constrained)
        rows.add(row, params, seed=0, choice=0, prompt_len=2, num_tokens=4)
    rows.flush()
    rows.put_masks(np.stack([bitmap([3], VOCAB), bitmap([TILE], VOCAB), bitmap([1], VOCAB)]))
    rows_np = np.arange(4, dtype=np.int32)
    logits = make_logits().expand(4, -1)
    batch = SamplingBatch(
        torch.from_numpy(rows_np),
        torch.full((4,), 4),
        rows_np,
        rows.needs(rows_np),
        mask_slots=torch.tensor([-1, 1, 0, 2], dtype=torch.int32),
    )
    best = int(logits[0].argmax())
    assert torch_path.draw(logits, batch, rows).token_ids.tolist() == [best, TILE, 3, best]
    unmasked = replace(batch, mask_slots=None)
    assert torch_path.draw(logits, unmasked, rows).token_ids.tolist() == [best] * 4
