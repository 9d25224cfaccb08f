"""Heads that draft in blocks and do not fit are refused by the field, with both sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ModelError
from engine.speculation.block_config import block_config
from engine.speculative_config import Method
from tests.engine.speculation.target_of_heads import TargetFolder, load_drafter
from tests.engine.speculation.tiny_blocks import (
    CONFIG,
    MASK_ID,
    NESTED,
    SELECTOR,
    write_dflash,
    write_dflash2,
    write_dspark,
)
from tests.engine.tiny_models import write_model

DRAFTERS: dict[str, Callable[..., Any]] = {
    "dflash": write_dflash,
    "dflash2": write_dflash2,
    "dspark": write_dspark,
}


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("dflash", {"hidden_size": 64}, "hidden size is 64, the target's 32"),
        ("dflash", {"vocab_size": 98}, "vocabulary is 98, the target's 97"),
        ("dflash", {"num_target_layers": 36}, "of 36 layers (num_target_layers), this one has 6"),
        ("dflash", {"nested": {"target_layer_ids": [1, 6]}}, "reads layers [1, 6]"),
        ("dflash", {"nested": {"target_layer_ids": [1, 5]}}, "features of size 96, those of 2"),
        ("dflash", {"nested": {"target_layer_ids": 3}}, "must be a list of layers, got 3"),
        ("dflash", {"nested": {"mask_token_id": 97}}, "mask_token_id must be below vocab_size 97"),
        ("dflash", {"nested": {"mask_token_id": None}}, "mask_token_id is missing"),
        ("dflash", {"nested": {"use_swa": True}}, "field 'dflash_config.use_swa' is unknown"),
        ("dflash", {"nested": {"selector_rnk": 4}}, "did you mean 'selector_rank'?"),
        ("dflash", {"attention_sink": True}, "field 'attention_sink' is unknown"),
        ("dflash", {"block_size": 3}, "at most 2, the drafts of the blocks of 3 tokens"),
        ("dflash", {"block_size": 1}, "block_size must be an integer of at least 2, got 1"),
        ("dflash", {"block_size": "6"}, "block_size must be an integer of at least 2, got '6'"),
        ("dflash", {"model_type": "llama"}, "heads of model_type 'llama'"),
        ("dflash", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("dflash", {"intermediate_size": 40}, "has shape [48, 32], the config asks for [40, 32]"),
        ("dflash2", {"dflash_config": NESTED | SELECTOR | {"conv_group_size": 5}}, "not divide"),
        (
            "dflash2",
            {"dflash_config": NESTED | {"selector_rank": 6}},
            "conv_kernel_size is missing",
        ),
        ("dspark", {"markov_head_type": "gated"}, "markov_head_type 'gated' is not supported"),
        ("dspark", {"block_size": 2}, "at most 2, the drafts of the blocks of 2 tokens"),
        ("dspark", {"draft_vocab_size": 9}, "has shape [97, 32], the config asks for [9, 32]"),
    ],
)
def test_a_head_that_does_not_fit(
    target_folder: TargetFolder, tmp_path: Path, kind: str, config: dict[str, Any], expected: str
) -> None:
    DRAFTERS[kind](tmp_path, **config)
    with pytest.raises(ModelError) as raised:
        load(target_folder[0], tmp_path, kind)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("kind", "method"), [("dflash", "dspark"), ("dspark", "dflash")])
def test_a_head_of_the_other_method(
    target_folder: TargetFolder, tmp_path: Path, kind: str, method: Method
) -> None:
    DRAFTERS[kind](tmp_path)
    with pytest.raises(ModelError, match=f"a head of method '{kind}', not '{method}'"):
        load(target_folder[0], tmp_path, method)


def test_a_target_on_transformers_modules_is_refused(tmp_path: Path) -> None:
    write_model("gpt2", tmp_path / "target")
    write_dflash(tmp_path / "head")
    with pytest.raises(ModelError, match="on transformers' modules does not give"):
        load(tmp_path / "target", tmp_path / "head", "dflash")


def test_a_mask_embedding_of_another_size(target_folder: TargetFolder, tmp_path: Path) -> None:
    write_dflash(tmp_path)
    torch.save(torch.zeros(7), tmp_path / "mask_embedding.pt")
    with pytest.raises(ModelError, match="must be a tensor of 32 numbers"):
        load(target_folder[0], tmp_path, "dflash")


@pytest.mark.parametrize("kind", DRAFTERS)
def test_random_heads_need_a_config_alone(
    target_folder: TargetFolder, tmp_path: Path, kind: str
) -> None:
    DRAFTERS[kind](tmp_path)
    (tmp_path / "model.safetensors").unlink()
    drafter = load(target_folder[0], tmp_path, kind, load_format="dummy")
    assert len(drafter.attention_specs) == CONFIG["num_hidden_layers"]
    assert not any(spec.is_causal for spec in drafter.attention_specs)


def test_a_published_config(tmp_path: Path) -> None:
    """The fields of a head of Qwen3-4B, as its authors have them."""
    from transformers import Qwen3Config

    write_dspark(
        tmp_path,
        bos_token_id=151643,
        dtype="bfloat16",
        max_window_layers=36,
        num_target_layers=36,
        rope_scaling=None,
        sliding_window=None,
        transformers_version="4.57.1",
        use_cache=True,
        use_sliding_window=False,
        target_layer_ids=[1, 9, 17, 25, 33],
        block_size=7,
    )
    found = block_config(tmp_path, Qwen3Config.from_pretrained(tmp_path), "dspark")
    assert found.target_layers == (1, 9, 17, 25, 33)
    assert (found.most_drafts, found.mask_token_id, found.anchored) == (7, MASK_ID, True)


def load(target: Path, head: Path, kind: str, **model: Any) -> Any:
    method: Method = "dspark" if kind == "dspark" else "dflash"
    return load_drafter(target, head, method, **model)
