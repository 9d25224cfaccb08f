"""The warm-up launches every variant of the kernels, so that none compiles while serving."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling import warm_up
from sampling.batch import Drafts, SamplingBatch
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import MAX_TOP, TOP_LANES
from sampling.paths import triton_path
from sampling.rows import GRAMMAR, SamplingRows
from sampling.speculative import verification
from sampling.warm_up import compile_kernels, compile_verification

CPU = torch.device("cpu")
Variant = tuple[bool, bool, bool, bool, bool, int]
"""Masks of grammars, edited, filtered, logprobs, what is kept, and the length of the top list;
Triton compiles each by itself."""


def make_rows(vocab_size: int = 2500, max_masks: int = 5) -> SamplingRows:
    history = torch.zeros(3, 16, dtype=torch.int32)
    return SamplingRows(3, vocab_size, CPU, history=history, max_masks=max_masks)


def variants(tops: tuple[int, ...], *, masks: bool = True) -> set[Variant]:
    """All variants there are: without logprobs no top list, with them none or one of `tops`."""
    edits = [(False, False), (False, True), *([(True, True)] if masks else [])]
    reports = [(False, False, 0), *((True, False, top) for top in (0, *tops)), (True, True, 0)]
    stages = product(edits, (False, True), reports)
    return {(*edited, filtered, *report) for edited, filtered, report in stages}


def variant_of(batch: SamplingBatch) -> Variant:
    needs, masked = batch.needs, batch.mask_slots is not None
    assert masked == bool(needs.flags & GRAMMAR)
    return masked, needs.edited, needs.filtered, needs.logprobs, needs.kept, needs.num_top


@pytest.mark.parametrize(
    ("vocab_size", "max_top", "tops"),
    [
        (2500, MAX_TOP, TOP_LANES),
        (2500, 20, TOP_LANES[:2]),  # 20 top tokens take the lanes of 32
        (2500, 0, TOP_LANES[:1]),
        (7, MAX_TOP, (7,)),
    ],
)
def test_every_variant_of_the_draw_is_launched(
    vocab_size: int, max_top: int, tops: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: set[Variant] = set()
    scaled: set[tuple[bool, bool]] = set()
    prompts: set[int] = set()
    listed: set[torch.dtype] = set()

    def draw(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> None:
        assert logits.dtype == torch.bfloat16
        assert batch.needs.random
        assert batch.needs.twice_filtered == batch.needs.filtered  # all turns of the filters
        drawn.add(variant_of(batch))

    def scale(source: Source, *arguments: Any, edited: bool) -> None:
        scaled.add((source.mask_slots is not None, edited))

    def report(logits: Tensor, targets: Tensor, num_top: int, *rest: Any, **options: Any) -> None:
        prompts.add(num_top)

    monkeypatch.setattr(triton_path, "draw", draw)
    monkeypatch.setattr(warm_up, "scaled_logits", scale)
    monkeypatch.setattr(warm_up, "prompt_kernels", report)
    monkeypatch.setattr(warm_up, "listed_kernels", lambda logits, ids: listed.add(logits.dtype))
    monkeypatch.setattr(warm_up, "tile_pass", lambda *arguments, **options: None)
    compile_kernels(make_rows(vocab_size), torch.bfloat16, max_top)
    assert drawn == variants(tops)
    assert scaled == {(False, False), (False, True), (True, True)}
    assert prompts == {0, *tops}
    assert listed == {torch.float32}  # labels are read from a head's float32


def test_masks_are_left_out_where_no_row_can_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[Variant] = set()
    monkeypatch.setattr(triton_path, "draw", lambda _, batch, rows: drawn.add(variant_of(batch)))
    for name in ("scaled_logits", "prompt_kernels", "listed_kernels", "tile_pass"):
        monkeypatch.setattr(warm_up, name, lambda *arguments, **options: None)
    compile_kernels(make_rows(max_masks=0), torch.bfloat16, 5)
    assert drawn == variants(TOP_LANES[:1], masks=False)


def test_every_variant_of_verification_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: set[tuple[bool, Variant]] = set()
    slots, rates = torch.zeros(3, 2, 2500), torch.ones(2, dtype=torch.float64)

    def verify(
        logits: Tensor,
        batch: SamplingBatch,
        rows: SamplingRows,
        drafts: Drafts,
        method: str,
        given: Tensor | None,
    ) -> None:
        assert batch.depths is not None
        assert (method, drafts.logits is slots, given is rates) == ("synthetic", True, True)
        assert len(logits) == len(batch.rows) == 1 + drafts.token_ids.shape[1] == 3
        verified.add((batch.needs.random, variant_of(batch)))

    monkeypatch.setattr(verification, "verify", verify)
    compile_verification(make_rows(), torch.float32, 5, 2, slots, "synthetic", rates)
    assert verified == set(product((False, True), variants(TOP_LANES[:1])))
