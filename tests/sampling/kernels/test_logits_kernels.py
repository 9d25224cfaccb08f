"""Masks of grammars as kernels read them, on few rows: which mask, what is kept, what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import reference
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS, SamplerOutput, SamplingBatch
from sampling.device.triton_support import INTERPRETED
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.paths import triton_path
from sampling.race import LEAST_CUT, MASS_ERROR
from sampling.rows import SamplingRows
from tests.sampling.kernel_cases import DEVICES
from tests.sampling.steps import bitmap

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs Triton's interpreter"
    ),
    # The interpreter computes with numpy, which warns where a GPU gives NaN or 0 in silence.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
VOCAB = TILE + 70
GREEDY = {"temperature": 0.0, "constrained": True}


def make_logits() -> Tensor:
    """float32 [VOCAB]; the highest is token 5."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    logits[5] = 9.0
    return logits


def draw(
    device: str,
    logits: Tensor,
    wishes: list[dict[str, Any]],
    row_of: list[int],
    masks: list[list[int]],
    slots: list[int] | None,
) -> SamplerOutput:
    """Draw from logits [n, VOCAB], logit row i for the sampling row `row_of[i]`."""
    where = torch.device(device)
    history = torch.zeros((len(wishes), 8), dtype=torch.int32, device=where)
    rows = SamplingRows(len(wishes), VOCAB, where, history=history, max_masks=len(masks))
    for row, wish in enumerate(wishes):
        rows.add(row, SamplingParams(**wish), seed=row, choice=0, prompt_len=2, num_tokens=4)
    rows.flush()
    rows.put_masks(np.stack([bitmap(allowed, VOCAB) for allowed in masks]))
    rows_np = np.array(row_of, dtype=np.int32)
    batch = SamplingBatch(
        torch.tensor(row_of, dtype=torch.int32, device=where),
        torch.full((len(row_of),), 4, device=where),
        rows_np,
        rows.needs(rows_np),
        mask_slots=None if slots is None else torch.tensor(slots, dtype=torch.int32, device=where),
    )
    return triton_path.draw(logits.to(where), batch, rows)


@pytest.mark.parametrize("device", DEVICES)
def test_each_logit_row_has_the_mask_of_its_slot(device: str) -> None:
    """Slot -1 and a row without a grammar have none; batches without slots neither."""
    logits = make_logits().expand(5, -1)
    wishes = [GREEDY, GREEDY, {"temperature": 0.0}]
    masks = [[TILE + 69], [3, 31], [32, 7]]
    best = make_logits()
    wanted = [max(ids, key=lambda token: float(best[token])) for ids in masks]
    drawn = draw(device, logits, wishes, [1, 1, 0, 2, 0], masks, [2, 0, 1, 0, -1])
    assert drawn.token_ids.tolist() == [wanted[2], wanted[0], wanted[1], 5, 5]
    assert drawn.bad.tolist() == [0] * 5
    unmasked = draw(device, logits, wishes, [1, 1, 0, 2, 0], masks, None)
    assert unmasked.token_ids.tolist() == [5] * 5


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_kept_counts_bias_in_both_masses(device: str) -> None:
    allowed = [1, 9, 600, TILE + 1]
    bias = {9: 6.0, 700: 7.0}
    wish = GREEDY | {"kept_logprob": True, "logit_bias": bias, "bad_words": ((600,),)}
    drawn = draw(device, make_logits()[None], [wish], [0], [allowed], [0])
    assert drawn.logprobs is not None
    x = make_logits().double().numpy()
    x[list(bias)] += list(bias.values())
    left = np.isin(np.arange(VOCAB), [1, 9, TILE + 1])
    wanted = reference.kept_logprob(x, left, temperature=1.0)
    # Two masses, the share that counts as no cut, float32's rounding of logits below 16.
    error = 2 * MASS_ERROR + LEAST_CUT + 2 * 2.0**-24 * 16
    assert abs(float(drawn.logprobs.kept[0]) - wanted) < error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wish", [GREEDY, GREEDY | {"frequency_penalty": 0.5}])
def test_masks_that_leave_nothing_are_told_from_unusable_logits(
    wish: dict[str, Any], device: str
) -> None:
    """Row 2 has no finite logit at all, row 3 a NaN that its mask hides, row 4 one of its own.

    Masks alone are read in another way than masks beside penalties.
    """
    logits = make_logits().repeat(5, 1)
    logits[1, 40:] = -torch.inf
    logits[2] = -torch.inf
    logits[3, 8] = torch.nan
    logits[4, TILE + 3] = torch.inf
    masks = [[], [41, TILE], [3], [8, 9]]
    drawn = draw(device, logits, [wish] * 5, list(range(5)), masks, [0, 1, 2, 0, 3])
    wanted = [NOTHING_ALLOWED, NOTHING_ALLOWED, *[UNUSABLE_LOGITS] * 3]
    assert drawn.bad.tolist() == wanted
    assert drawn.token_ids.tolist() == [0] * 5
