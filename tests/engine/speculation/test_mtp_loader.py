"""A target without a multi-token-prediction head is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.loader import load_model
from engine.speculation.head_target import HeadTarget
from engine.speculation.mtp_loader import load_mtp_head
from sampling.vocab_shard import VocabShard
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.tiny_models import write_model


def load(folder: Path) -> None:
    config = ModelConfig(model=str(folder), dtype="float32")
    target = load_model(config, torch.device("cpu"))
    shard = VocabShard.whole(target.vocab_size)
    load_mtp_head(HeadTarget(config, target, torch.device("cpu"), 64, shard))


def test_a_family_without_heads(tmp_path: Path) -> None:
    write_model("llama", tmp_path)
    with pytest.raises(ModelError, match=r"method 'mtp': .* no multi-token-prediction head: llama"):
        load(tmp_path)


def test_a_checkpoint_without_its_head(tmp_path: Path) -> None:
    write_hybrid(config_of("qwen3_5"), tmp_path)
    with pytest.raises(ModelError, match=r"there is no tensor mtp\.fc\.weight"):
        load(tmp_path)
