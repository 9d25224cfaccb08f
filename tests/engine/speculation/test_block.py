"""Heads that draft in blocks over paged caches, against the same mathematics in float64.

The steps are those of `test_drafters`: prompts in chunks beside decoding rows, drafts refused and
kept in all numbers, a block that its row's limit cuts, tables with other rows' blocks after them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.speculation.drafted_rows import DEVICES
from tests.engine.speculation.target_of_heads import (
    DRAFT_IDS,
    NUM_TOKENS,
    TargetFolder,
    check_graph,
    drafted_rows,
    prompt,
    serve,
)
from tests.engine.speculation.tiny_blocks import (
    H,
    PlainBlock,
    write_dflash,
    write_dflash2,
    write_dspark,
)

LIMITS = {prompt(9)[0]: 16}
"""Of the row that ends in `serve`, by its first token."""
WINDOWS: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True,
    "sliding_window": 7,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["plain", "windows", "windows, not causal", "mask embedding"])
def test_dflash(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    kind: str,
    temperature: float,
) -> None:
    folder, peer = target_folder
    config = WINDOWS if kind.startswith("windows") else {}
    if kind == "windows, not causal":
        config = config | {"is_causal": False}
    own: dict[str, Any] = {}
    if kind.startswith("windows"):
        own = {"windows": [7, None], "causal": [kind == "windows", False]}
    tensors = write_dflash(tmp_path, **config)
    if kind == "mask embedding":
        own["mask_embedding"] = torch.randn(H, generator=torch.Generator().manual_seed(0))
        torch.save(own["mask_embedding"], tmp_path / "mask_embedding.pt")
    head = PlainBlock(tensors, peer, NUM_TOKENS, limits=LIMITS, **own)
    model = {"method": "dflash", "model": str(tmp_path)}
    serve(drafted_rows(device, folder, head, temperature=temperature, **model))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("is_causal", [False, None])
def test_dflash2(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    is_causal: bool | None,
    temperature: float,
) -> None:
    folder, peer = target_folder
    tensors = write_dflash2(tmp_path, is_causal=is_causal, **WINDOWS)
    causal = [is_causal is None, False]
    head = PlainBlock(tensors, peer, NUM_TOKENS, windows=[7, None], causal=causal, limits=LIMITS)
    model = {"method": "dflash", "model": str(tmp_path)}
    serve(drafted_rows(device, folder, head, temperature=temperature, **model))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("draft_ids", "anchored"), [(None, True), (DRAFT_IDS, True), (None, False)]
)
def test_dspark(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    draft_ids: list[int] | None,
    anchored: bool,
    temperature: float,
) -> None:
    """With an LM head over all ids or some; the anchor's place predicts the first draft or none."""
    folder, peer = target_folder
    own = {} if anchored else {"sample_from_anchor": False, "block_size": 4}
    tensors = write_dspark(tmp_path, draft_ids=draft_ids, **own)
    head = PlainBlock(tensors, peer, NUM_TOKENS, anchored=anchored, limits=LIMITS)
    model = {"method": "dspark", "model": str(tmp_path)}
    serve(drafted_rows(device, folder, head, temperature=temperature, **model))


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_fewer_drafts_than_the_head_was_trained_for(
    target_folder: TargetFolder, tmp_path: Path, num_tokens: int
) -> None:
    """The block is as long as the drafts asked for; a row may be shorter than it."""
    folder, peer = target_folder
    head = PlainBlock(write_dflash(tmp_path), peer, num_tokens, limits=LIMITS | {3: 6})
    rows = drafted_rows(
        torch.device("cpu"),
        folder,
        head,
        temperature=0.0,
        method="dflash",
        model=str(tmp_path),
        num_speculative_tokens=num_tokens,
    )
    rows.rows[1].limit = 6
    rows.step({1: 3, 0: 21})
    for accepted in (0, 1, 0, 1):
        rows.step({0: accepted})
    rows.step({1: 1, 0: 0})
    assert rows.num_checked > 5


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_a_graph_proposes_what_eager_steps_do(
    target_folder: TargetFolder, tmp_path: Path, kind: str
) -> None:
    if kind == "dspark":
        write_dspark(tmp_path)
    elif kind == "dflash":
        write_dflash(tmp_path)
    else:
        write_dflash2(tmp_path)
    method = kind.removesuffix("2")
    check_graph(target_folder[0], tmp_path, method)
