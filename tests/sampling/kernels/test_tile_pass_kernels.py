"""The tile pass against plain torch, and the memory it must not touch. Nothing is random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import race
from sampling.batch import SamplingBatch
from sampling.device.triton_support import triton
from sampling.kernels import tile_pass as tile_pass_module
from sampling.kernels.logits import Source
from sampling.kernels.tile_pass import PEAK, TileStats, tile_pass
from sampling.noise import TILE
from sampling.params import SamplingParams
from sampling.race import MASS_ERROR
from sampling.rows import SamplingRows
from tests.sampling.kernel_cases import DEVICES, pytestmark  # noqa: F401
from tests.sampling.steps import batch_of_all, bitmap

NUM_ROWS, NUM_TILES, TEMPERATURE = 2, 5, 0.7
VOCAB_SIZE = NUM_TILES * TILE - 100
POISON = -77.0


def make_source(device: str, wish: dict[str, Any]) -> tuple[Source, Tensor]:
    """Bfloat16 logits of two rows, on the device and as float32 on the CPU."""
    where = torch.device(device)
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(NUM_ROWS, VOCAB_SIZE, generator=generator) * 3).bfloat16()
    history = torch.zeros(NUM_ROWS, 8, dtype=torch.int32, device=where)
    rows = SamplingRows(NUM_ROWS, VOCAB_SIZE, where, history=history)
    for row in range(NUM_ROWS):
        params = SamplingParams(temperature=TEMPERATURE, **wish)
        rows.add(row, params, seed=row, choice=0, prompt_len=1, num_tokens=4)
    rows.flush()
    return Source.of(logits.to(where), batch_of_all(rows, 4), rows), logits.float()


def assert_right(
    stats: TileStats, logits: Tensor, processed: Tensor, unmasked: Tensor | None = None
) -> None:
    """Maxima are equal; masses lie within the error that `sampling.race` derives."""
    temperature = torch.full((NUM_ROWS,), TEMPERATURE, dtype=torch.float64)
    measured = [
        (processed, temperature, stats.maxima, stats.masses),
        (logits, torch.ones_like(temperature), stats.raw_maxima, stats.raw_masses),
    ]
    if unmasked is not None:
        measured.append((unmasked, temperature, stats.unmasked_maxima, stats.unmasked_masses))
    for values, scale, maxima, masses in measured:
        wanted = race.tile_masses(values, scale)
        assert torch.equal(maxima.cpu(), wanted.maxima)
        error = (masses.cpu() / wanted.masses - 1).abs().max()
        assert float(error) < 2 * MASS_ERROR  # both sides are float32 sums
    filled = torch.nn.functional.pad(processed, (0, 100), value=-torch.inf)
    assert torch.equal(stats.peaks.cpu(), filled.view(NUM_ROWS, -1, PEAK).amax(2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(("tiles", "steps"), [(None, None), (1, 1), (4, 1), (2, 2), (8, 1)])
def test_every_launch_shape_gives_the_same(
    tiles: int | None, steps: int | None, edited: bool, device: str
) -> None:
    if steps == 2 and not edited:
        steps = 1  # several steps are for edited rows
    source, logits = make_source(device, {"logit_bias": {7: 2.0}} if edited else {})
    processed = logits.clone()
    if edited:
        processed[:, 7] += 2.0
    stats = tile_pass(source, edited=edited, peaked=True, reported=True, tiles=tiles, steps=steps)
    assert_right(stats, logits, processed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wish", [{}, {"logit_bias": {7: 2.0}}], ids=["plain", "edited"])
def test_the_shape_for_many_tiles_gives_the_same(
    wish: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tile is measured by the shape that a step of thousands of tiles is given."""
    monkeypatch.setattr(tile_pass_module, "MANY_TILES", 1)
    source, logits = make_source(device, wish)
    processed = logits.clone()
    for token, bias in wish.get("logit_bias", {}).items():
        processed[:, token] += bias
    stats = tile_pass(source, edited=bool(wish), peaked=True, reported=True)
    assert_right(stats, logits, processed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("edited", [False, True])
def test_a_partial_group_of_tiles_writes_nothing_behind_its_row(edited: bool, device: str) -> None:
    """Four tiles a program, five in a row: the last row's second program has three too many."""
    edits = {"logit_bias": {7: 0.5}, "bad_words": ((TILE + 3,),)}
    source, logits = make_source(device, (edits if edited else {}) | {"kept_logprob": True})
    peaks_a_tile = TILE // PEAK
    sizes = [NUM_ROWS * NUM_TILES * width for width in (1, 1, peaks_a_tile, 1, 1, 1, 1)]
    beyond = 4 * peaks_a_tile  # more than a program can reach
    buffers = [torch.full((size + beyond,), POISON, device=device) for size in sizes]
    stats = TileStats(
        *(buffer[:size].view(NUM_ROWS, -1) for buffer, size in zip(buffers, sizes, strict=True))
    )
    tile_pass_module._tile_pass_kernel[(triton.cdiv(NUM_TILES, 4) * NUM_ROWS,)](
        source,
        stats,
        NUM_TILES,
        1,
        tiles=4,
        edited=edited,
        masked=False,
        peaked=True,
        reported=True,
        kept=True,
        num_warps=1,
        enable_fp_fusion=False,
    )
    for name, buffer, size in zip(TileStats._fields, buffers, sizes, strict=True):
        assert (buffer[size:] == POISON).all(), name
    unmasked = logits.clone()
    if edited:
        unmasked[:, 7] += 0.5
    processed = unmasked.clone()
    if edited:
        processed[:, TILE + 3] = -torch.inf
    assert_right(stats, logits, processed, unmasked)


MASKED_ROWS = 8


def make_masked_source(device: str, dtype: torch.dtype) -> Source:
    """Rows of which masks leave some ids, in row 0 none of a tile, in row 1 none at all.

    Masks hide what makes row 2 unusable, but not row 3. Nothing is left of row 4 without a mask.
    Row 6 has no mask and row 7 no grammar.
    """
    where, vocab_size = torch.device(device), 3 * TILE - 37
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(MASKED_ROWS, vocab_size, generator=generator) * 3
    allowed = torch.rand(MASKED_ROWS, vocab_size, generator=generator) < 0.4
    allowed[0, TILE : 2 * TILE] = False
    allowed[1] = False
    unusable = [5, TILE + 6]
    logits[2, unusable] = torch.tensor([torch.nan, torch.inf])
    logits[3, unusable] = torch.tensor([-torch.nan, torch.inf])
    allowed[2, unusable], allowed[3, unusable] = False, True
    logits[4] = -torch.inf
    logits[5, ::2] = -0.0
    history = torch.zeros(MASKED_ROWS, 8, dtype=torch.int32, device=where)
    rows = SamplingRows(MASKED_ROWS, vocab_size, where, history=history, max_masks=MASKED_ROWS)
    for row in range(MASKED_ROWS):
        params = SamplingParams(temperature=TEMPERATURE, constrained=row != 7)
        rows.add(row, params, seed=row, choice=0, prompt_len=1, num_tokens=4)
    rows.flush()
    rows.put_masks(np.stack([bitmap(ids.nonzero()[:, 0].tolist(), vocab_size) for ids in allowed]))
    rows_np = np.arange(MASKED_ROWS, dtype=np.int32)
    slots = torch.tensor([0, 1, 2, 3, 4, 5, -1, 7], dtype=torch.int32, device=where)
    batch = SamplingBatch(
        torch.arange(MASKED_ROWS, dtype=torch.int32, device=where),
        torch.full((MASKED_ROWS,), 4, device=where),
        rows_np,
        rows.needs(rows_np),
        mask_slots=slots,
    )
    assert batch.needs.only_grammars
    return Source.of(logits.to(where, dtype), batch, rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiles", [None, 2])
def test_masks_of_grammars_alone_take_another_way_to_the_same(
    tiles: int | None, dtype: torch.dtype, device: str
) -> None:
    source = make_masked_source(device, dtype)
    long, short, plain = (
        tile_pass(source, **edits, peaked=True, reported=True, tiles=tiles)
        for edits in ({"edited": True}, {"edited": True, "masked": True}, {"edited": False})
    )
    for name in ("maxima", "raw_maxima", "masses", "raw_masses"):
        error = 2 * MASS_ERROR if name.endswith("masses") else 0.0
        torch.testing.assert_close(
            getattr(short, name), getattr(long, name), rtol=error, atol=0, equal_nan=True
        )
    usable = [0, 1, 4, 5, 6, 7]
    assert torch.equal(short.peaks[usable], long.peaks[usable])
    assert (short.masses[1] == -1.0).all(), "only masks left nothing"
    assert (short.masses[4] == 0.0).all(), "there was nothing"
    assert short.masses[2:4, :2].isnan().all()
    assert torch.equal(short.maxima[6:], plain.maxima[6:])
    assert (short.maxima[:6] != plain.maxima[:6]).any()
