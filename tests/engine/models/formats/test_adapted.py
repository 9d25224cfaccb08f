"""Models with adapters in slots against transformers' own with the same adapters merged.

Both compute in float32; a merge rounds each weight once. Logits of these models are up to 30.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Phi3Config

from engine.adapters.folder import read_adapter
from engine.adapters.stacks import AdapterStacks
from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.errors import AdapterError
from engine.models.loader import load_model
from tests.engine.adapters.peft import ENDS, linear_modules, merge, source_of, write_adapter
from tests.engine.kernels.lora.cases import groups_of
from tests.engine.models.serving import PagedRows, write_tiny
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
    stacks.load(slot, stacks.to_host(read_adapter(source_of(folder), stacks.max_rank)))


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
        logits = rows.step(ids, parts, stacks.active, groups_of(own, "cpu"))
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
        write_adapter(
            base,
            tmp_path / f"adapter{seed}",
            seed,
            rank=rank,
            is_wanted=wanted,
            experts=True,
            ends=ENDS,
        )
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


def test_modules_of_each_expert_are_those_of_their_tensor(tmp_path: Path) -> None:
    """Checkpoints, and trainers of older models, have experts as modules of their own."""
    base = write_model("qwen3_moe", tmp_path / "base")

    def apart(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            halves = "A" if "lora_A" in name else "B"
            tensor, is_first = tensors.pop(name), ".base_layer." in name
            each = (
                tensor.view(6, 4, -1)
                if halves == "A"
                else tensor.view(-1, 4, 6).permute(2, 0, 1).contiguous()
            )
            holder = name.partition(".experts.")[0]
            for expert, own in enumerate(each):
                parts = {"down_proj": own}
                if is_first:
                    gate, up = (own, own) if halves == "A" else own.chunk(2)
                    parts = {"gate_proj": gate, "up_proj": up}
                for part, factor in parts.items():
                    full = f"{holder}.experts.{expert}.{part}.lora_{halves}.weight"
                    tensors[full] = factor.clone()

    merged = write_adapter(
        base,
        tmp_path / "adapter",
        is_wanted=lambda name: "self_attn" in name,
        experts=True,
        change=apart,
        target_modules="all-linear",
        target_parameters=None,
    )
    check_served(tmp_path, base, merged)


def check_served(folder: Path, base: Any, merged: Any, **settings: Any) -> None:
    """The model of a folder with its adapter has the logits of a merged model."""
    model, stacks = load(folder / "base", **settings)
    put(stacks, 0, folder / "adapter")
    ids = some_ids(base.config.vocab_size)
    logits = serve(model, stacks, ids, [0, 0, 0])
    expected = merged(ids).logits
    torch.testing.assert_close(logits.log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=1e-4)
    assert (logits - base(ids).logits).abs().max() > 0.1, "adapters change little"


@pytest.mark.parametrize("kind", ["phi3", "glm4"])
def test_modules_that_a_checkpoint_joins_are_adapted_apart(kind: str, tmp_path: Path) -> None:
    """Each part of a joined weight has factors of its own: A, B and rank."""
    sizes = {"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1}
    base = write_model("glm4" if kind == "glm4" else "llama", tmp_path / "base")
    if kind == "phi3":
        config = Phi3Config(**{**FUSED["llama"], **sizes, "rope_scaling": None})
        base = write_tiny(config, tmp_path / "base")
    last = "qkv_proj" if kind == "phi3" else "gate_up_proj"
    parts = {
        "qkv_proj": (("q", 32), ("k", 16), ("v", 16)),
        "gate_up_proj": (("gate", 48), ("up", 48)),
    }
    merged, tensors = copy.deepcopy(base), dict[str, torch.Tensor]()
    generator = torch.Generator().manual_seed(0)
    for name, module in linear_modules(merged).items():
        if not name.endswith(last):
            continue
        deltas, holder = [], name.rpartition(".")[0]
        for rank, (part, width) in enumerate(parts[last], start=2):
            a = torch.randn((rank, module.in_features), generator=generator) * 0.2
            b = torch.randn((width, rank), generator=generator)
            deltas.append(2.0 * b @ a)
            full = f"base_model.model.{holder}.{part}_proj"
            tensors |= {f"{full}.lora_A.weight": a, f"{full}.lora_B.weight": b}
        merge(module.weight, torch.cat(deltas))
    names = [f"{part}_proj" for part, _ in parts[last]]
    ranks = {name: rank for rank, name in enumerate(names, start=2)}
    config_of = {"r": 8, "lora_alpha": 16, "target_modules": names, "rank_pattern": ranks}
    alphas = {name: 2 * rank for name, rank in ranks.items()}
    (tmp_path / "adapter").mkdir()
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    text = json.dumps(config_of | {"alpha_pattern": alphas})
    (tmp_path / "adapter" / "adapter_config.json").write_text(text)
    check_served(tmp_path, base, merged)
    joined = write_adapter(base, tmp_path / "adapter", is_wanted=lambda name: name.endswith(last))
    check_served(tmp_path, base, joined)


@pytest.mark.parametrize("ends", [ENDS[:1], ENDS[1:], ENDS])
def test_tied_ends_have_adapters_of_their_own(ends: tuple[str, ...], tmp_path: Path) -> None:
    base = write_model("qwen2", tmp_path / "base")
    merged = write_adapter(base, tmp_path / "adapter", is_wanted=lambda name: False, ends=ends)
    check_served(tmp_path, base, merged)


def test_a_tied_head_follows_adapted_embeddings(tmp_path: Path) -> None:
    """Where PEFT was asked to keep them tied (`ensure_weight_tying`)."""
    base = write_model("qwen2", tmp_path / "base")
    merged = write_adapter(
        base,
        tmp_path / "adapter",
        is_wanted=lambda name: False,
        ends=ENDS[:1],
        ensure_weight_tying=True,
    )
    merged.lm_head.weight = merged.model.embed_tokens.weight
    check_served(tmp_path, base, merged)


def test_modules_that_are_left_out_are_refused_with_the_flag(tmp_path: Path) -> None:
    base = write_model("qwen3_moe", tmp_path / "base")
    wanted = ("q_proj", "lm_head")
    stacks = AdapterStacks(num_slots=2, max_rank=8, wanted=wanted)
    config = ModelConfig(model=str(tmp_path / "base"))
    model = load_model(config, torch.device("cpu"), adapters=stacks)
    own: dict[str, Any] = {"is_wanted": lambda name: name.endswith("q_proj"), "ends": ENDS[1:]}
    merged = write_adapter(base, tmp_path / "adapter", **own)
    put(stacks, 0, tmp_path / "adapter")
    ids = some_ids(base.config.vocab_size)
    logits = serve(model, stacks, ids, [0, 0, 0])
    torch.testing.assert_close(logits, merged(ids).logits, rtol=0, atol=1e-4)
    others: list[tuple[dict[str, Any], str]] = [
        ({"ends": ENDS[:1]}, "embed_tokens"),
        ({"experts": True}, "gate_up_proj"),
        ({"is_wanted": lambda name: name.endswith("o_proj")}, "o_proj"),
    ]
    for options, name in others:
        write_adapter(base, tmp_path / "other", **own | options)
        with pytest.raises(AdapterError, match=f"--lora-target-modules.*{name}"):
            put(stacks, 0, tmp_path / "other")


def test_refusals_of_what_the_base_does_not_have(tmp_path: Path) -> None:
    write_model("qwen3_moe", tmp_path / "base")
    _, stacks = load(tmp_path / "base")
    router = "model.layers.0.mlp.gate"

    def say(tensors: dict[str, torch.Tensor], **fields: Any) -> str:
        (tmp_path / "adapter").mkdir(exist_ok=True)
        save_file(
            {f"base_model.model.{name}": each for name, each in tensors.items()},
            tmp_path / "adapter" / "adapter_model.safetensors",
        )
        config = {"r": 4, "target_modules": "all-linear", **fields}
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
        with pytest.raises(AdapterError) as error:
            put(stacks, 0, tmp_path / "adapter")
        return str(error.value)

    of_router = {
        f"{router}.lora_A.weight": torch.ones(4, 32),
        f"{router}.lora_B.weight": torch.ones(6, 4),
    }
    assert f"no module {router!r}" in say(of_router)
    experts = "model.layers.0.mlp.experts"
    of_experts = {
        f"{experts}.lora_A.weight": torch.ones(4 * 5, 32),
        f"{experts}.lora_B.weight": torch.ones(32, 4 * 5),
    }
    parameters = {"target_parameters": ["experts.gate_up_proj"]}
    assert "6 experts of [32, 32]" in say(of_experts, **parameters)
    as_linear = {
        "model.embed_tokens.lora_A.weight": torch.ones(4, 97),
        "model.embed_tokens.lora_B.weight": torch.ones(32, 4),
    }
    assert "must be lora_embedding_A and lora_embedding_B" in say(as_linear)
    resized = {
        "model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(4, 32),
        "model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(64, 4),
        "model.embed_tokens.weight": torch.ones(99, 32),
    }
    assert "the vocabulary was resized" in say(resized)
