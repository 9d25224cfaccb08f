"""A drafter's weights by their names: written in place, drafts are those of the new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import ModelConfig
from engine.contracts.drafter import Drafter
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.speculation.make_drafter import make_drafter
from engine.speculative_config import SpeculativeConfig
from tests.engine.models.rewriting import (
    assert_holds,
    stored_tensors,
    write_in_pieces,
    write_other,
)
from tests.engine.speculation.drafted_rows import DraftedRows, Row, make_attention, make_rows
from tests.engine.speculation.tiny_blocks import write_dflash, write_dflash2, write_dspark
from tests.engine.speculation.tiny_heads import write_eagle1, write_eagle3
from tests.engine.speculation.tiny_mtp import write_with_mtp
from tests.engine.tiny_models import VOCAB, write_model

CPU = torch.device("cpu")
DRAFT_IDS = sorted({(13 * i) % VOCAB for i in range(60)})
HEADS: dict[str, tuple[str, Callable[[Path], Any], set[str]]] = {
    "eagle": ("eagle", lambda f: write_eagle1(f, bias=True), {"embed_tokens.weight"}),
    "eagle3": ("eagle3", lambda f: write_eagle3(f, draft_ids=None), set()),
    "eagle3 of fewer ids": ("eagle3", lambda f: write_eagle3(f, draft_ids=DRAFT_IDS), {"t2d"}),
    "dflash": ("dflash", write_dflash, set()),
    "dflash2": ("dflash", write_dflash2, set()),
    "dspark": (
        "dspark",
        write_dspark,
        {"confidence_head.proj.weight", "confidence_head.proj.bias"},
    ),
    "draft model": ("draft_model", lambda f: write_model("qwen3", f, 3), set()),
}
"""Method, what writes the head, and the tensors that are not its own."""


def drafter_of(target: Path, head: Path | None, method: Any) -> DraftedRows:
    config = ModelConfig(model=str(target), dtype="float32", max_model_len=64)
    model = load_model(config, CPU)
    assert isinstance(model, Decoder)
    rows, sampling = make_rows(VOCAB, 1.0, CPU)
    speculative = SpeculativeConfig(
        method=method,
        model=None if head is None else str(head),
        num_speculative_tokens=3,
        draft_sample_method="gumbel",
    )
    drafter = make_drafter(speculative, config, model, rows, sampling, make_attention)
    return DraftedRows(model, drafter, sampling, [Row(list(range(2, 23)), limit=64)], None)


def drafted(rows: DraftedRows) -> torch.Tensor:
    """The draft logits of a step over a prompt."""
    rows.step({0: 21})
    logits = rows.drafter.draft_logits
    assert logits is not None
    return logits.clone()


def assert_rewritten(make: Callable[[Path], DraftedRows], folder: Path, others: set[str]) -> None:
    old, rows = stored_tensors(folder / "old"), make(folder / "old")
    drafter: Drafter = rows.drafter
    named = drafter.named_weights()
    assert named.keys() == old.keys() - others
    assert_holds(named, old)
    new = write_other(folder / "old", folder / "new", others)
    wanted = drafted(make(folder / "new"))
    assert not torch.equal(drafted(make(folder / "old")), wanted)
    write_in_pieces(named, new)
    assert torch.equal(drafted(rows), wanted)
    assert_holds(named, new)


@pytest.mark.parametrize("kind", HEADS)
def test_drafters_are_rewritten(kind: str, tmp_path: Path) -> None:
    method, write, others = HEADS[kind]
    write_model("llama", tmp_path / "target", num_hidden_layers=6)
    write(tmp_path / "old")
    assert_rewritten(lambda head: drafter_of(tmp_path / "target", head, method), tmp_path, others)
    named = drafter_of(tmp_path / "target", tmp_path / "old", method).drafter.named_weights()
    assert all(map(named.passes_over, others))
    assert not any(map(named.passes_over, named))


def test_the_head_of_a_checkpoint_is_rewritten(tmp_path: Path) -> None:
    """Its weights are those of the checkpoint that the target has not; the target stays."""
    write_with_mtp(tmp_path / "old", ["full_attention"] * 2, VOCAB)
    tensors = stored_tensors(tmp_path / "old")
    targets = {name for name in tensors if not name.startswith("mtp.")}
    model = load_model(ModelConfig(model=str(tmp_path / "old")), CPU)
    assert model.named_weights().keys() == targets
    assert all(map(model.named_weights().passes_over, tensors.keys() - targets))

    assert_rewritten(lambda folder: drafter_of(folder, None, "mtp"), tmp_path, targets)
