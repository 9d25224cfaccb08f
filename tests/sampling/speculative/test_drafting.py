"""A drafter's draws in torch against the float64 reference.

`test_drafting_kernels` compares the kernels with torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.noise import Purpose
from sampling.race import MASS_ERROR
from sampling.speculative.drafting import DraftMethod, draw_drafts
from sampling.speculative.draws import MAX_RATE
from tests.sampling.speculative.drafting_cases import (
    NUM_DRAFTS,
    PARAMS,
    POSITION,
    N,
    make_logits,
    make_rows,
)


def allowed(params: dict[str, Any], vocab_size: int, depth: int) -> np.ndarray:
    ids = np.arange(vocab_size)
    kept = np.ones(vocab_size, dtype=bool)
    if "allowed_token_ids" in params:
        kept &= np.isin(ids, params["allowed_token_ids"])
    if "bad_words" in params:
        kept &= ids != 3  # 4 is banned after 2 only, which a drafter cannot know
        if POSITION + depth - 2 < params["min_tokens"]:
            kept &= ~np.isin(ids, params["stop_token_ids"])
    return kept


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("method", ["greedy", "gumbel", "coupled"])
@pytest.mark.parametrize("vocab_size", [100, 3000])
def test_drafts_equal_the_reference(vocab_size: int, method: DraftMethod, depth: int) -> None:
    batch, rows = make_rows(vocab_size)
    logits = make_logits(vocab_size + 3)
    slots = torch.full((N + 1, NUM_DRAFTS, vocab_size), 7.0) if method == "gumbel" else None
    drawn = draw_drafts(logits, batch, rows, depth, method, draft_logits=slots)
    for i, row in enumerate(batch.rows_np.tolist()):
        params = PARAMS[row % len(PARAMS)]
        x = logits[i, :vocab_size].double().numpy()
        x = np.where(allowed(params, vocab_size, depth), x, -np.inf)
        temperature = params.get("temperature", 1.0)
        if method == "greedy" or temperature == 0.0:
            assert int(drawn[i]) == x.argmax()
            continue
        weights = np.exp((x - x.max()) / max(temperature, MAX_RATE**-1))
        at = {"seed": 900 - row, "choice": row % 2}
        if method == "gumbel":
            at |= {"position": POSITION, "purpose": Purpose.DRAFT, "depth": depth}
        else:
            at |= {"position": POSITION + depth, "purpose": Purpose.TARGET}
        expected = reference.two_level(weights, **at)
        assert int(drawn[i]) == expected.token_id or expected.margin < 4 * MASS_ERROR
        if slots is not None and temperature > 1e-40:
            q = torch.softmax(slots[row, depth].double(), 0).numpy()
            np.testing.assert_allclose(q, weights / weights.sum(), rtol=1e-5)
    if slots is not None:
        others = torch.arange(NUM_DRAFTS) != depth
        assert (slots[:, others] == 7.0).all()
        assert (slots[N] == 7.0).all()


def test_the_earliest_history_bans_nothing_a_draft_might_undo() -> None:
    batch, rows = make_rows(100, wishes=[{"temperature": 0.0, "bad_words": ((2, 4),)}])
    logits = torch.zeros(N, 100)
    logits[:, 4] = 1.0
    assert draw_drafts(logits, batch, rows, 0).tolist() == [4] * N


@pytest.mark.parametrize("method", ["greedy", "gumbel", "coupled"])
def test_a_reduced_vocabulary_is_drawn_as_the_whole_with_the_rest_masked(
    method: DraftMethod,
) -> None:
    batch, rows = make_rows(2500)
    columns = torch.full((2500,), -1, dtype=torch.int32)
    kept = torch.randperm(2500, generator=torch.Generator().manual_seed(3))[:700]
    columns[kept] = torch.arange(700, dtype=torch.int32)
    few = make_logits(700)
    whole = torch.full((N, 2500), -torch.inf)
    whole[:, kept] = few

    def draw(logits: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        slots = torch.zeros(N, 2, 2500) if method == "gumbel" else None
        ids = draw_drafts(logits, batch, rows, 1, method, draft_logits=slots, columns=columns)
        return ids, slots

    (reduced, slots), (expected, whole_slots) = draw(few, columns), draw(whole, None)
    assert torch.equal(reduced, expected)
    assert torch.isin(reduced, kept).all()
    if slots is not None and whole_slots is not None:
        assert torch.equal(slots, whole_slots)


@pytest.mark.parametrize("method", ["greedy", "gumbel", "coupled"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_bad_logits_draw_something_in_range_and_harm_no_other(
    bad: float, method: DraftMethod
) -> None:
    batch, rows = make_rows(1500)
    logits = make_logits(1500)

    def draw(logits: Tensor) -> Tensor:
        slots = torch.zeros(N, 2, 1500) if method == "gumbel" else None
        return draw_drafts(logits, batch, rows, 0, method, draft_logits=slots)

    clean = draw(logits)
    logits[3] = bad
    drawn = draw(logits)
    assert ((drawn >= 0) & (drawn < 1500)).all()
    others = torch.arange(N) != 3
    assert torch.equal(drawn[others], clean[others])


def test_gumbel_without_slots_is_refused() -> None:
    batch, rows = make_rows(100)
    with pytest.raises(ValueError, match="draft_logits"):
        draw_drafts(make_logits(100), batch, rows, 0, "gumbel")
