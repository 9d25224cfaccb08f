"""A drafter's draws on their kernels equal plain torch: the same drafts, the same q to the bit.

A draft may differ where two keys are closer than the error of the float32 tile sums, 2**-17 a
draw: odds below 0.005 over these draws. The seeds are fixed, so the outcome is fixed too.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sampling.device.triton_support import INTERPRETED
from sampling.speculative import drafting
from sampling.speculative.drafting import DraftMethod, draw_drafts
from tests.sampling.bounds import watch_bounds
from tests.sampling.kernel_cases import DEVICES
from tests.sampling.speculative.drafting_cases import N, make_logits, make_rows

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs Triton's interpreter"
    ),
    # The interpreter computes with numpy, which warns where a GPU gives NaN or 0 in silence.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def draw(
    logits: Tensor, vocab_size: int, method: DraftMethod, columns: Tensor | None, device: str
) -> tuple[Tensor, Tensor]:
    """The drafts of depth 1, and the slots, on the CPU."""
    batch, rows = make_rows(vocab_size, device)
    slots = torch.full((N + 1, 2, vocab_size), 7.0, device=device)
    drawn = draw_drafts(
        logits.to(device),
        batch,
        rows,
        1,
        method,
        draft_logits=slots if method == "gumbel" else None,
        columns=None if columns is None else columns.to(device),
    )
    return drawn.cpu(), slots.cpu()


def every_third(vocab_size: int) -> Tensor:
    columns = torch.full((vocab_size,), -1, dtype=torch.int32)
    count = len(columns[::3])
    columns[::3] = torch.arange(count, dtype=torch.int32).flip(0)
    return columns


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["greedy", "gumbel", "coupled"])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(("vocab_size", "dtype"), [(100, torch.float32), (2500, torch.bfloat16)])
def test_kernels_equal_plain_torch(
    vocab_size: int,
    dtype: torch.dtype,
    reduced: bool,
    method: DraftMethod,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = every_third(vocab_size) if reduced else None
    logits = make_logits(len(columns[::3]) if columns is not None else vocab_size + 2).to(dtype)
    logits[2, 1], logits[4] = torch.nan, -torch.inf
    ours, slots = draw(logits, vocab_size, method, columns, device)
    with monkeypatch.context() as plain:
        plain.setattr(drafting, "kernels_run_on", lambda device: False)
        wanted, wanted_slots = draw(logits, vocab_size, method, columns, "cpu")
    good = ~torch.isin(torch.arange(N), torch.tensor([2, 4]))  # the others may draw anything
    assert ours[good].tolist() == wanted[good].tolist()
    assert ((ours >= 0) & (ours < vocab_size)).all()
    assert torch.equal(slots.nan_to_num(3.0), wanted_slots.nan_to_num(3.0))


@pytest.mark.skipif(not INTERPRETED, reason="watches the interpreter")
def test_kernels_stay_inside_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    strayed = watch_bounds(monkeypatch)
    for method in ("greedy", "gumbel", "coupled"):
        for columns in (None, every_third(1100)):
            width = 1100 if columns is None else len(columns[::3])
            logits = make_logits(width)
            logits[2] = torch.nan
            draw(logits, 1100, method, columns, "cpu")
    assert strayed == set()
