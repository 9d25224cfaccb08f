"""The warm-up launches every variant of the kernels, so that none compiles while serving."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from sampling import warm_up
from sampling.batch import Drafts, SamplingBatch
from sampling.kernels.logprobs import MAX_TOP, TOP_LANES
from sampling.paths import triton_path
from sampling.rows import SamplingRows
from sampling.speculative import triton_verification
from sampling.warm_up import compile_kernels, compile_verification

CPU = torch.device("cpu")
Variant = tuple[bool, bool, bool, int]
"""Edited, filtered, logprobs and the length of the top list; Triton compiles each by itself."""


def make_rows(vocab_size: int = 2500) -> SamplingRows:
    return SamplingRows(3, vocab_size, CPU, history=torch.zeros(3, 16, dtype=torch.int32))


def variants(tops: tuple[int, ...]) -> set[Variant]:
    """All variants there are: without logprobs no top list, with them none or one of `tops`."""
    reports = [(False, 0), (True, 0), *((True, top) for top in tops)]
    stages = product((False, True), (False, True), reports)
    return {(edited, filtered, *report) for edited, filtered, report in stages}


def variant_of(batch: SamplingBatch) -> Variant:
    needs = batch.needs
    return needs.edited, needs.filtered, needs.logprobs, needs.num_top


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
    scaled: set[bool] = set()
    prompts: set[int] = set()

    def draw(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> None:
        assert logits.dtype == torch.bfloat16
        assert batch.needs.random
        assert batch.needs.twice_filtered == batch.needs.filtered  # all turns of the filters
        drawn.add(variant_of(batch))

    def scale(*arguments: Any, edited: bool) -> None:
        scaled.add(edited)

    def report(logits: Tensor, targets: Tensor, num_top: int, *rest: Any, **options: Any) -> None:
        prompts.add(num_top)

    monkeypatch.setattr(triton_path, "draw", draw)
    monkeypatch.setattr(warm_up, "scaled_logits", scale)
    monkeypatch.setattr(warm_up, "prompt_kernels", report)
    monkeypatch.setattr(warm_up, "tile_pass", lambda *arguments, **options: None)
    compile_kernels(make_rows(vocab_size), torch.bfloat16, max_top)
    assert drawn == variants(tops)
    assert scaled == {False, True}
    assert prompts == {0, *tops}


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

    monkeypatch.setattr(triton_verification, "verify", verify)
    compile_verification(make_rows(), torch.float32, 5, 2, slots, "synthetic", rates)
    assert verified == set(product((False, True), variants(TOP_LANES[:1])))
