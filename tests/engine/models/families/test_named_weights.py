"""Weights of every family by their names: read as they are stored, and written in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.kernels.linear import FEW_INPUTS
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from sampling.device.ranks import RankExchange
from tests.engine.models.families.hybrid_models import FAMILIES as HYBRIDS
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.models.families.shard_models import CPU
from tests.engine.models.families.shard_models import MODELS as DIVIDED
from tests.engine.models.rewriting import (
    assert_holds,
    assert_regained,
    lose,
    stored_tensors,
    text_logits,
    write_in_pieces,
    write_other,
)
from tests.engine.models.serving import load, write_tiny
from tests.engine.models.small_models import MODELS
from tests.sampling.ranks import on_ranks


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_rewritten(name: str, tmp_path: Path) -> None:
    """Bits are those of a model that was loaded with the new weights."""
    write_tiny(MODELS[name], tmp_path / "old")
    model = load(tmp_path / "old", max_model_len=128)
    assert isinstance(model, Decoder)
    assert_rewritten(model, tmp_path)


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_that_keep_states_are_rewritten(name: str, tmp_path: Path) -> None:
    write_hybrid(config_of(name), tmp_path / "old")
    assert_rewritten(load(tmp_path / "old", max_model_len=128), tmp_path)


def assert_rewritten(model: CausalLM, folder: Path) -> None:
    named, old = model.named_weights(), stored_tensors(folder / "old")
    assert named.keys() == old.keys()
    assert_holds(named, old)
    new = write_other(folder / "old", folder / "new")
    wanted = text_logits(load(folder / "new", max_model_len=128))
    assert not torch.equal(text_logits(model), wanted)
    write_in_pieces(named, new)
    assert torch.equal(text_logits(model), wanted)
    assert_holds(named, new)
    assert_regained(model, new)
    lose(named)
    as_given = {
        name: each for name, each in named.items() if max(each.shape[-1:], default=0) <= FEW_INPUTS
    }
    held = [name for name, each in as_given.items() if bool(each.read().any())]
    assert not held, "all of a weight is given up, but for those that a CPU packs"


@pytest.mark.parametrize("name", ["biases", "deepseek-v3", "gpt-oss", "phi3-partial", "qwen3-moe"])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_write_their_parts(name: str, size: int, tmp_path: Path) -> None:
    write_tiny(DIVIDED[name], tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    old = stored_tensors(tmp_path / "old")

    def load_part(exchange: RankExchange, folder: str) -> CausalLM:
        return load_model(ModelConfig(model=str(tmp_path / folder)), CPU, exchange)

    def rewrite(exchange: RankExchange) -> torch.Tensor:
        model = load_part(exchange, "old")
        named = model.named_weights()
        assert named.keys() == old.keys()
        assert_holds(named, old)
        write_in_pieces(named, new)
        assert_holds(named, new)
        assert_regained(model, new)
        return text_logits(model)

    wanted = on_ranks(size, lambda exchange: text_logits(load_part(exchange, "new")))
    for got, own in zip(on_ranks(size, rewrite), wanted, strict=True):
        assert torch.equal(got, own)
