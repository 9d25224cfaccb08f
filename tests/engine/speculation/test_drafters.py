"""Drafters over paged caches against the same mathematics over a whole text at once.

Every proposal of every step is checked: prompts in chunks beside decoding rows, drafts refused
and kept in all numbers, limits reached, tables with other rows' blocks after them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.speculation.drafted_rows import DEVICES
from tests.engine.speculation.target_of_heads import (
    DRAFT_IDS,
    TargetFolder,
    check_graph,
    drafted_rows,
    serve,
)
from tests.engine.speculation.tiny_heads import (
    PlainEagle1,
    PlainEagle3,
    write_eagle1,
    write_eagle3,
)
from tests.engine.speculation.tiny_mtp import write_with_mtp
from tests.engine.speculation.tiny_next_layers import KINDS, write_with_next_layers
from tests.engine.tiny_models import write_model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
def test_eagle(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    bias: bool,
    temperature: float,
) -> None:
    folder, peer = target_folder
    head = PlainEagle1(write_eagle1(tmp_path, bias=bias), peer)
    serve(
        drafted_rows(
            device, folder, head, temperature=temperature, method="eagle", model=str(tmp_path)
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
def test_eagle3(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    draft_ids: list[int] | None,
    temperature: float,
) -> None:
    """With an embedding of its own and the usual layers, or a reduced vocabulary and others."""
    folder, peer = target_folder
    named = {} if draft_ids is None else {"eagle_aux_hidden_state_layer_ids": [4, 0, 3]}
    layers = (1, 2, 2) if draft_ids is None else (4, 0, 3)
    tensors = write_eagle3(tmp_path, draft_ids=draft_ids, eagle_config=named)
    head = PlainEagle3(tensors, peer, layers)
    serve(
        drafted_rows(
            device, folder, head, temperature=temperature, method="eagle3", model=str(tmp_path)
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_draft_model(
    device: torch.device, target_folder: TargetFolder, tmp_path: Path, kind: str, temperature: float
) -> None:
    """A fused draft model, and one on transformers' modules."""
    folder, _ = target_folder
    peer = write_model(kind, tmp_path, seed=3).eval()

    def next_logits(text: list[int], drafts: list[int]) -> torch.Tensor:
        logits: torch.Tensor = peer(input_ids=torch.tensor([text + drafts])).logits[0, -1]
        return logits

    serve(
        drafted_rows(
            device,
            folder,
            next_logits,
            temperature=temperature,
            method="draft_model",
            model=str(tmp_path),
        )
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_draft_model_that_is_the_target_drafts_what_the_target_draws(
    device: torch.device, target_folder: TargetFolder
) -> None:
    folder, peer = target_folder

    def next_logits(text: list[int], drafts: list[int]) -> torch.Tensor:
        logits: torch.Tensor = peer(input_ids=torch.tensor([text + drafts])).logits[0, -1]
        return logits

    serve(
        drafted_rows(
            device, folder, next_logits, temperature=0.0, method="draft_model", model=str(folder)
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_checkpoints_own_head(device: torch.device, tmp_path: Path, temperature: float) -> None:
    """Greedy and drawn drafts, each after the first of the head's own output."""
    _, head = write_with_mtp(tmp_path, ["full_attention"] * 2)
    serve(drafted_rows(device, tmp_path, head, temperature=temperature, method="mtp"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_layers_after_the_last(
    device: torch.device, tmp_path: Path, kind: str, temperature: float
) -> None:
    _, head = write_with_next_layers(kind, tmp_path)
    serve(drafted_rows(device, tmp_path, head, temperature=temperature, method="mtp"))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model"])
def test_a_graph_proposes_what_eager_steps_do(
    target_folder: TargetFolder, tmp_path: Path, method: str
) -> None:
    """The first replay and later ones, draft logits included."""
    folder, _ = target_folder
    if method == "eagle":
        write_eagle1(tmp_path, bias=False)
    elif method == "eagle3":
        write_eagle3(tmp_path, draft_ids=DRAFT_IDS)
    model = folder if method == "draft_model" else tmp_path
    check_graph(folder, model, method)
