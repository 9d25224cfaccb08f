"""One bad row of a batch fails alone, on every path: 8 rows of 32,768, top-k 50, top-p 0.9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS
from sampling.params import SamplingParams
from sampling.paths.flashinfer import obstacle
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig, SamplerOutput, SamplingBatch

NUM_ROWS, VOCAB_SIZE, BROKEN = 8, 32_768, 3
NAN, INF = float("nan"), float("inf")
PATHS = [
    pytest.param("cpu", None, id="cpu"),
    pytest.param("cuda", "never", id="native", marks=pytest.mark.gpu),
    pytest.param("cuda", "always", id="flashinfer", marks=pytest.mark.gpu),
]


def put(value: float, ids: slice | list[int]) -> Callable[[Tensor], None]:
    def spoil(row: Tensor) -> None:
        row[ids] = value

    return spoil


def nan_at_the_top(row: Tensor) -> None:
    row[row.argmax()] = NAN


def nan_and_inf(row: Tensor) -> None:
    row[[5, 9_000]] = NAN
    row[[7, 20_000]] = INF
    row[[6, 30_000]] = -INF


KINDS: dict[str, tuple[Callable[[Tensor], None], bool]] = {
    "all NaN": (put(NAN, slice(None)), True),
    "16 NaN": (put(NAN, list(range(11, VOCAB_SIZE, VOCAB_SIZE // 16))), True),
    "NaN at the top": (nan_at_the_top, True),
    "one +Inf": (put(INF, [1234]), True),
    "several +Inf": (put(INF, [0, 1023, 1024, 32_767]), True),
    "several -Inf": (put(-INF, [0, 1023, 1024, 32_767]), False),
    "all -Inf": (put(-INF, slice(None)), True),
    "NaN and Inf": (nan_and_inf, True),
}
"""How a row is spoiled, and whether that makes it bad."""

Wishes = dict[int, dict[str, Any]]
"""Parameters of some rows beside the filters."""


class Drawer:
    """Draws a batch again and again with the same noise."""

    def __init__(self, device: str, use: str | None) -> None:
        self.device, self.use = torch.device(device), use
        if use == "always" and (reason := obstacle(self.device)) is not None:
            pytest.skip(reason)

    def __call__(
        self, logits: Tensor, wishes: dict[int, dict[str, Any]] | None = None
    ) -> SamplerOutput:
        history = torch.zeros(NUM_ROWS, 8, dtype=torch.int32, device=self.device)
        rows = SamplingRows(NUM_ROWS, VOCAB_SIZE, self.device, history=history)
        for row in range(NUM_ROWS):
            params = SamplingParams(top_k=50, top_p=0.9, **(wishes or {}).get(row, {}))
            rows.add(row, params, seed=row, choice=0, prompt_len=1, num_tokens=4)
        rows.flush()
        rows_np = np.arange(NUM_ROWS, dtype=np.int32)
        batch = SamplingBatch(
            torch.arange(NUM_ROWS, dtype=torch.int32, device=self.device),
            torch.full((NUM_ROWS,), 4, device=self.device),
            rows_np,
            rows.needs(rows_np),
        )
        use = "always" if self.use == "always" else "never"
        sampler = Sampler(SamplerConfig(flashinfer=use), rows)  # type: ignore[arg-type]
        if use == "always":
            assert sampler._flashinfer is not None
            sampler._flashinfer._generator.manual_seed(7)
        output = sampler(logits.to(self.device), batch)
        assert sampler.rows_by_path["flashinfer"] == (NUM_ROWS if use == "always" else 0)
        return output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("device", "use"), PATHS)
def test_a_bad_row_fails_alone(device: str, use: str | None, kind: str) -> None:
    draw = Drawer(device, use)
    clean = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(4)) * 2
    control = draw(clean)
    assert not control.bad.any()
    spoil, bad = KINDS[kind]
    logits = clean.clone()
    spoil(logits[BROKEN])
    output = draw(logits)
    code = UNUSABLE_LOGITS if bad else 0
    assert output.bad.dtype == torch.uint8
    assert output.bad.tolist() == [code * (row == BROKEN) for row in range(NUM_ROWS)]
    token = int(output.token_ids[BROKEN])
    assert token == 0 if bad else logits[BROKEN, token].isfinite()
    others = [row for row in range(NUM_ROWS) if row != BROKEN]
    assert torch.equal(output.token_ids[others], control.token_ids[others])


NOTHING_LEFT = {"allowed_token_ids": (5, 2000), "bad_words": ((5,), (2000,))}


@pytest.mark.parametrize(("device", "use"), PATHS)
def test_masks_that_leave_nothing_have_a_code_of_their_own(device: str, use: str | None) -> None:
    """Unless the raw logits are unusable: that is reported first, also where masks hide it."""
    draw = Drawer(device, use)
    logits = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(4)) * 2
    logits[2, 9] = NAN
    logits[4] = -INF
    logits[6, 5] = INF
    logits[7, 6:] = -INF  # five tokens are left, none of which is allowed
    masked = dict.fromkeys((1, 2, 4, 6), NOTHING_LEFT) | {7: {"allowed_token_ids": (6, 7)}}
    output = draw(logits, masked)
    wanted = [0, NOTHING_ALLOWED, UNUSABLE_LOGITS, 0, UNUSABLE_LOGITS, 0, UNUSABLE_LOGITS, 2]
    assert output.bad.tolist() == wanted
    assert output.token_ids[[1, 2, 4, 6, 7]].tolist() == [0] * 5
    assert torch.equal(output.token_ids[[0, 3, 5]], draw(logits).token_ids[[0, 3, 5]])
