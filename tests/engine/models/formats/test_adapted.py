"""Models with adapters in slots against transformers' own with the same adapters merged.

Both compute in float32; a merge rounds each weight once. Logits of these models are up to 30.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.adapters.folder import read_adapter
from engine.adapters.stacks import AdapterStacks
from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.models.loader import load_model
from tests.engine.adapters.peft import write_adapter
from tests.engine.kernels.lora.cases import groups_of
from tests.engine.models.serving import PagedRows
from tests.engine.tiny_models import FUSED, write_model

LENGTH = 21
PARTS = ([(0, 0, 16), (1, 0, 5), (2, 0, 7)], [(2, 7, 21), (0, 16, 17), (1, 5, 21)], [(0, 17, 21)])
"""Chunks of three rows, of which two decode and one prefills in a step."""
NOT_ADAPTED = ("router", ".gate", "shared_expert_gate", ".experts.")


def load(folder: Path, **settings: Any) -> tuple[CausalLM, AdapterStacks]:
    stacks = AdapterStacks(num_slots=2, max_rank=8)
    config = ModelConfig(model=str(folder), **settings)
    model = load_model(config, torch.device("cpu"), adapters=stacks)
    return model, stacks


def put(stacks: AdapterStacks, slot: int, folder: Path) -> None:
    stacks.load(slot, stacks.to_host(read_adapter(folder, stacks.max_rank)))


@torch.inference_mode()
def serve(
    model: CausalLM, stacks: AdapterStacks, ids: torch.Tensor, slots: list[int]
) -> torch.Tensor:
    """Logits [rows, LENGTH, vocab] of rows that have these adapters, computed in `PARTS`."""
    rows = PagedRows(model, len(ids))
    out: list[list[torch.Tensor]] = [[] for _ in ids]
    for parts in PARTS:
        counts = [last - first for _, first, last in parts]
        own = np.repeat([slots[row] for row, *_ in parts], counts).astype(np.int32)
        with stacks.active.using(groups_of(own, "cpu")):
            logits = rows.step(ids, parts)
        for (row, *_), each in zip(parts, logits, strict=True):
            out[row].append(each)
    return torch.stack([torch.cat(each) for each in out])


def some_ids(vocab: int) -> torch.Tensor:
    return torch.randint(2, vocab, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", FUSED)
def test_logits_are_those_of_the_merged_model(kind: str, tmp_path: Path) -> None:
    base = write_model(kind, tmp_path / "base")

    def is_wanted(name: str) -> bool:
        return not any(part in name for part in NOT_ADAPTED) or name.endswith("gate_proj")

    def wanted(name: str) -> bool:
        return is_wanted(name) and ".experts." not in name

    merged = [
        write_adapter(base, tmp_path / f"adapter{seed}", seed, rank=rank, is_wanted=wanted)
        for seed, rank in enumerate((4, 8))
    ]
    model, stacks = load(tmp_path / "base")
    for slot in (0, 1):
        put(stacks, slot, tmp_path / f"adapter{slot}")
    ids = some_ids(base.config.vocab_size)
    logits = serve(model, stacks, ids, [0, 1, -1])
    for row, own in enumerate([*merged, base]):
        expected = own(ids[row : row + 1]).logits[0]
        torch.testing.assert_close(
            logits[row].log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=1e-4
        )
    assert (logits[0] - base(ids[:1]).logits[0]).abs().max() > 0.1, "adapters change little"


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_a_row_without_an_adapter_keeps_its_bits(quantization: Any, tmp_path: Path) -> None:
    base = write_model("qwen3", tmp_path / "base")
    write_adapter(base, tmp_path / "adapter")
    model, stacks = load(tmp_path / "base", quantization=quantization)
    put(stacks, 0, tmp_path / "adapter")
    ids = some_ids(base.config.vocab_size)
    alone, mixed = (serve(model, stacks, ids, slots) for slots in ([-1, -1, -1], [0, 0, -1]))
    assert torch.equal(mixed[2], alone[2])
    assert not torch.equal(mixed[0], alone[0])


def test_beside_a_base_in_float8_adapters_are_not_rounded(tmp_path: Path) -> None:
    """What float8 takes from an adapted model is what it takes from the base, about.

    Twice as much is allowed for the other numbers that are rounded; an adapter that was left out
    or applied to rounded inputs alone would be 10 times as far.
    """
    base = write_model("llama", tmp_path / "base")
    merged = write_adapter(base, tmp_path / "adapter")
    model, stacks = load(tmp_path / "base", quantization="fp8")
    put(stacks, 0, tmp_path / "adapter")
    ids = some_ids(base.config.vocab_size)
    adapted, plain = (serve(model, stacks, ids, [slot] * 3) for slot in (0, -1))
    with torch.inference_mode():
        wanted, before = merged(ids).logits, base(ids).logits
    lost = (plain - before).norm()
    assert (adapted - wanted).norm() < 2 * lost
    assert (plain - wanted).norm() > 4 * lost, "the adapter changes little"


def test_a_slot_is_replaced_whole(tmp_path: Path) -> None:
    base = write_model("llama", tmp_path / "base")
    write_adapter(base, tmp_path / "large", rank=8)
    small = write_adapter(
        base, tmp_path / "small", 1, rank=2, is_wanted=lambda n: n.endswith("v_proj")
    )
    model, stacks = load(tmp_path / "base")
    for folder in ("large", "small"):
        put(stacks, 0, tmp_path / folder)
    ids = some_ids(base.config.vocab_size)
    logits = serve(model, stacks, ids, [0, 0, 0])
    expected = small(ids).logits
    torch.testing.assert_close(logits.log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=1e-4)
